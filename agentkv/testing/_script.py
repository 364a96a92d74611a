"""A script as a constraint for the engine, which allows one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._types.errors import InvalidInput
from ..output._compiler import ConstraintCompiler
from ..output._matcher import ConstraintFailed, Growth, Masks, Matcher, Rule
from ..output._thinking import ThinkingRule

if TYPE_CHECKING:
    from agentkv_runtime.constraints import PythonConstraint

    from .._chat.tokenizer import Tokenizer
    from .._context.core import ContextCore
    from .._engine.interface import StepEngine
    from ..output._compiler import Description

Spell = Callable[[object, Callable[..., str]], str]


class Script(ConstraintCompiler):
    """Compiler that gives each generation the next reply of a script, which the generation's grammar must allow."""

    def __init__(self, core: ContextCore, script: Sequence[Any] | Callable[[str], Any], spell: Spell) -> None:
        super().__init__(core.compiler.tokenizer, core.compiler.vocab_size)
        self._core = core
        self._make = script if callable(script) else None
        self._replies = [] if callable(script) else list(script)
        self._spell = spell
        self._begun = 0
        self._given: list[PythonConstraint] = []

    @property
    def left(self) -> list[Any]:
        """Replies that no generation has used."""
        return self._replies[self._begun :]

    def for_generation(self, engine: StepEngine, branch: int, description: Description | None) -> PythonConstraint:
        """Constraint to the next reply. Raises InvalidInput where none is left, and errors of a script function."""
        reply = self._reply(engine, branch)
        self._begun += 1
        tokenizer = self._core.chat.tokenizer
        said = tokenizer.encode(self._spell(reply, self._core.chat.format.write))
        own = None if description is None else self.compiled(description)
        said = own.spoken(said) if isinstance(own, ThinkingRule) else said
        opener = self._core.chat.format.spelling.opener
        name = f"reply {self._begun} of the script"
        rule = ReplyRule([*said, *tokenizer.eos_ids[:1]], tokenizer, self.vocab_size, own, opener)
        self._given.append(self.as_native(name, rule))
        return self._given[-1]

    def for_continuation(self, engine: StepEngine, branch: int, description: Description | None) -> PythonConstraint:
        """Constraint to the rest of the branch's last reply."""
        going = (each for each in reversed(self._given) if engine.goes_on(branch, each))
        return next(going, None) or self.for_generation(engine, branch, description)

    def _reply(self, engine: StepEngine, branch: int) -> Any:
        if self._make is not None:
            return self._make(self._core.chat.tokenizer.decode(engine.tokens(branch).tolist(), skip_special=False))
        if not self.left:
            raise InvalidInput(
                f"a generation began on branch {branch}, but all {len(self._replies)} replies of the script were "
                "given; write another one"
            )
        return self.left[0]


_NO_CALLS = "this message takes no calls, such as one without tools, or the answer near the end of a turn"
_OTHER_CALLS = "does the agent have such a tool, with arguments of these names and types?"


class ReplyRule:
    """Rule of one reply, with the grammar that its generation has besides."""

    def __init__(
        self, tokens: Sequence[int], tokenizer: Tokenizer, vocab_size: int, own: Rule | None, opener: str
    ) -> None:
        self._tokens = list(tokens)
        self._opener = opener  # of calls
        self._eos = frozenset(tokenizer.eos_ids)
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._own = own

    def begin(self) -> Matcher:
        """Makes the matcher of a generation. Raises ConstraintFailed where its grammar does not allow the reply."""
        if self._own is not None:
            self._check(self._own.begin())
        return ReplyState(self._tokens, self._eos, self._vocab_size)

    def end(self, state: Matcher) -> None:
        """Does nothing: no state outlives a generation."""

    def _check(self, state: Matcher) -> None:
        said = [token for token in self._tokens if token not in self._eos]
        for place, token in enumerate(said):
            if not state.grow([token], [-1], 0).allowed:
                before = self._text(said[:place])
                begin = self._text(said).find(self._opener)
                is_within_opener = 0 <= begin <= len(before) < begin + len(self._opener)
                raise ConstraintFailed(
                    f"the grammar of the generation does not allow {self._text([token])!r} after {before!r}; "
                    f"{_NO_CALLS if is_within_opener else _OTHER_CALLS}"
                )
            state.advance([token])
        if not state.complete and len(said) < len(self._tokens) and not state.grow(self._tokens[-1:], [-1], 0).allowed:
            raise ConstraintFailed(
                f"the grammar of the generation does not allow the end after {self._text(said)!r}; is anything missing?"
            )

    def _text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special=False)


class ReplyState:
    """Matcher of a reply, which has the tokens that are left."""

    def __init__(self, tokens: Sequence[int], eos: frozenset[int], vocab_size: int) -> None:
        self._tokens = list(tokens)
        self._eos = eos
        self._nothing = vocab_size  # the bit for "nothing may follow"

    def advance(self, tokens: list[int]) -> None:
        """Advances by generated tokens."""
        del self._tokens[: len(tokens)]

    @property
    def complete(self) -> bool:
        """Whether the whole reply was generated."""
        return not self._tokens

    def forced(self, most: int) -> list[int]:
        """Up to `most` next tokens of the reply, without end tokens."""
        return [token for token in self._tokens[:most] if token not in self._eos]

    def grow(self, tokens: list[int], parents: list[int], most: int) -> Growth:
        """Draft nodes whose path agrees with the reply."""
        return Growth([node for node, place in enumerate(self._places(tokens, parents)) if place is not None], [], [])

    def fill_masks(self, tokens: list[int], parents: list[int], masks: Masks) -> None:
        """Sets one bit per row: the next token of the reply."""
        for row, place in enumerate([0, *self._places(tokens, parents)]):
            if place is not None:
                token = self._tokens[place] if place < len(self._tokens) else self._nothing
                masks[row, token // 32] = 1 << token % 32

    def _places(self, tokens: list[int], parents: list[int]) -> list[int | None]:
        """For each draft node, the number of reply tokens up to and with it; None where its path differs."""
        places: list[int | None] = []
        for token, parent in zip(tokens, parents, strict=True):
            before = 0 if parent < 0 else places[parent]
            agrees = before is not None and before < len(self._tokens) and self._tokens[before] == token
            places.append(before + 1 if agrees and before is not None else None)
        return places
