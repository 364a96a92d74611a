"""The objects that all branches of one Context share."""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

import xxhash

from ._call_habits import CallHabits
from ._errors import ForeignBranch, InvalidInput, ModelError
from ._snapshot import ModelKey
from ._spelling import Spelling
from .agents.threads import ToolThreads
from .agents.trunks import Trunks

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format

    from ._branch import Branch
    from ._call_format import CallFormat
    from ._encoding import Encoding
    from ._loop import StepLoop
    from ._model import OpenModel
    from ._options import Options
    from ._overflow import Overflow
    from ._reply import ReplyReader
    from ._speculation import Speculation
    from ._tokenizer import Tokenizer


class Home:
    """The step loop that runs their verbs, what makes tokens and text of each other, and who lives here.

    `context` is the Context itself, which branches only hand out.
    """

    def __init__(
        self,
        context: Any,
        loop: StepLoop,
        encoding: Encoding,
        reader: ReplyReader,
        tokenizer: Tokenizer,
        model: OpenModel,
        overflow: Overflow,
        rescue: bool,
    ) -> None:
        self.context = context
        self.loop = loop
        self.encoding = encoding
        self.reader = reader
        self.spelling = Spelling(model.tokenizer)
        self.tokenizer = tokenizer
        self.speculation: Speculation = model.speculation
        self.overflow = overflow
        self.shared: dict[object, Any] = {}  # one of each in a Context, by who makes it
        self._model = model
        self._rescue = rescue
        self.habits = CallHabits(self._find_format)
        self._key: ModelKey | None = None
        self.generate_options = model.generate_options
        self.grammars = model.grammars(model.tokenizer, model.info.vocab_size)
        self._branches: weakref.WeakValueDictionary[int, Branch] = weakref.WeakValueDictionary()

    @property
    def options(self) -> Options | None:
        """How it was opened; None over a server."""
        return self._model.options

    @property
    def format(self) -> Format:
        """How the model's output is read as a message. Raises ModelError where the folder says it wrongly."""
        return self.habits.format

    def _find_format(self) -> Format:
        from agentkv_runtime.formats import find_format

        try:
            return find_format(self._model.tokenizer, self._model.call_format, rescue=self._rescue)
        except ValueError as error:
            raise ModelError(
                f"{self._model.info.path}: {error}; or pass call_format (--call-format) when opening"
            ) from error

    @property
    def named_format(self) -> CallFormat | None:
        """What it is looked up by; None where the tokenizer itself says."""
        return self._model.call_format

    @property
    def branches(self) -> list[Branch]:
        """The live branches, oldest first."""
        return [branch for _, branch in sorted(self._branches.items())]

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """What each token spells, special ones too."""
        return self.tokenizer.token_bytes()

    @cached_property
    def call_ends(self) -> frozenset[int]:
        """The tokens with which a call of the model's may become complete."""
        ends = {character.encode()[-1] for character in self.format.call_ends}
        return frozenset(i for i, spelled in enumerate(self.token_bytes) if not ends.isdisjoint(spelled))

    @cached_property
    def trunks(self) -> Trunks:
        """The prompts of agents."""
        return Trunks()

    @cached_property
    def tool_threads(self) -> ToolThreads:
        """The worker threads of its tools."""
        return ToolThreads()

    def model_key(self) -> ModelKey:
        """What saved cells belong to. Takes a while the first time; from any thread."""
        if self._key is None:
            info = self._model.info
            spelled = [len(piece).to_bytes(4, "little") + piece for piece in self.token_bytes]
            tokenizer = xxhash.xxh3_128_hexdigest(b"".join(spelled))
            fingerprint = info.fingerprint or self._model.fingerprint()
            # Floats that codes stood for are no basis for a Context that is exact to the bit.
            kv_dtype = info.kv_dtype if info.quantize_after is None else f"{info.kv_dtype}+int8"
            self._key = ModelKey(fingerprint, info.backend, kv_dtype, tokenizer, self._model.window)
        return self._key

    def check_maps_files(self, option: str) -> None:
        """Raises InvalidInput where files cannot be mapped into the cache."""
        if self._model.info.backend != "cpu":
            raise InvalidInput(
                f"{option}=True needs cells that files can be mapped into, which the backend "
                f"{self._model.info.backend!r} does not have; leave it out, or open the Context with backend='cpu'"
            )

    def check_publishes(self) -> None:
        """Raises InvalidInput where no server keeps branches under names."""
        if not self._model.publishes:
            raise InvalidInput(
                "branches are published on a server, which keeps them for others: kv.Context.connect(url, "
                "backend='agentkv'); in this process hand the branch on, or save it to a file"
            )

    def enter(self, branch: Branch) -> None:
        """A branch begins."""
        self._branches[branch.id] = branch

    def leave(self, branch: Branch) -> None:
        """A branch was closed. Idempotent."""
        self._branches.pop(branch.id, None)

    def check_owns(self, branch: Branch) -> None:
        """Raises ForeignBranch for a branch of another Context."""
        if branch._home is not self:
            raise ForeignBranch(f"branch {branch.id} lives in another Context; open both branches in one")
