"""The services that all branches of one Context share, and the registry of these branches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import xxhash

from .._aio.background import BackgroundTasks
from .._chat.model import ChatModel
from .._model.options import MOST_POSITIONS
from .._state.adapters import LoadedAdapters
from .._storage.layout import ModelKey
from .._storage.save import StorageDeps
from .._types.errors import ForeignBranch, InvalidInput
from .handle import handle_of
from .offloader import Offloader

if TYPE_CHECKING:
    from .._chat.call_habits import Rescue
    from .._engine.loop import StepLoop
    from .._model.open import OpenModel
    from .._prefixes.cache import PrefixCache
    from .._state.branch_state import BranchStates
    from .._types.offload import Offload
    from .branch import Branch
    from .handle import BranchRecord
    from .journaling import ContextJournal
    from .overflow import Overflow

T = TypeVar("T")


class ContextCore:
    """Services that all branches of one Context share: step loop, tokens, chat model, constraint compiler, drafters.

    Attributes:
        context: the Context itself, only handed out by branches.
        loop: runs the engine's calls and jobs.
        states: tokens and conversation of each branch.
        observers: get events other than the engine's calls.
        model: the open model.
        chat: converts prompts to tokens, and tokens to messages.
        compiler: compiles constraints.
        registry: the open branches.
        adapters: the LoRA adapters that are loaded.
        overflow: default policy of branches.
        background: tasks that end with the Context.
        journal: durable record of turns; None for none.
        offloader: finds cells where they lack; None where all stay in the cache.
        prefixes: beginnings of prompts on disk; None without them.
    """

    def __init__(
        self,
        context: Any,
        loop: StepLoop,
        states: BranchStates,
        model: OpenModel,
        overflow: Overflow,
        rescue: Rescue,
        journal: ContextJournal | None,
        offload: Offload | None,
    ) -> None:
        self.context = context
        self.loop = loop
        self.states = states
        self.observers = states.observers
        self.model = model
        info = model.info
        states.trained_positions = info.trained_positions
        self.chat = ChatModel(
            model.tokenizer,
            model.call_format,
            path=info.path,
            vocab_size=info.vocab_size,
            max_prompt=loop.snapshot.engine.capacity if info.window is None else MOST_POSITIONS,
            max_positions=info.max_positions,
            rescue=rescue,
        )
        self.compiler = model.compiler(model.tokenizer, info.vocab_size)
        self.registry = BranchRegistry()
        self.adapters = LoadedAdapters()
        self.overflow = overflow
        self.background = BackgroundTasks()
        self.journal = journal
        self.offloader: Offloader | None = None
        if offload is not None:
            self.offloader = Offloader(loop, self.registry, self.background, offload)
            states.on_change = self.offloader.notify
        self.prefixes = self._prefix_cache()
        self._singletons: dict[object, Any] = {}
        self._key: ModelKey | None = None

    def singleton(self, make: Callable[..., T], *given: Any) -> T:
        """The one result of `make` in this Context; `given` are its arguments on the first call."""
        if make not in self._singletons:
            self._singletons[make] = make(*given)
        return cast(T, self._singletons[make])

    def model_key(self) -> ModelKey:
        """Identity that saved cells belong to. Slow the first time; callable from any thread."""
        if self._key is None:
            info = self.model.info
            spelled = [len(piece).to_bytes(4, "little") + piece for piece in self.chat.token_bytes]
            tokenizer = xxhash.xxh3_128_hexdigest(b"".join(spelled))
            fingerprint = info.fingerprint or self.model.fingerprint()
            # Floats that were int8 codes must not enter a Context that is bit-exact.
            kv_dtype = info.kv_dtype if info.quantize_after is None else f"{info.kv_dtype}+int8"
            self._key = ModelKey(fingerprint, info.backend, kv_dtype, tokenizer, self.model.window)
        return self._key

    def _prefix_cache(self) -> PrefixCache | None:
        options = self.model.options
        if options is None or options.prefix_cache is None:
            return None
        from .._prefixes.cache import PrefixCache

        return PrefixCache(
            self.loop,
            self.model_key,
            options.prefix_cache,
            options.prefix_cache_bytes,
            maps=self.model.info.backend == "cpu",
        )

    async def close(self) -> None:
        """Ends tasks and what is being written, fails all running commands, frees the engine, closes the journal.
        Idempotent; not interruptible."""
        try:
            if self.loop.is_here:
                await self.loop.wait_shielded(*self.background.end())
            if self.prefixes is not None:
                await self.prefixes.close()
        finally:
            self.registry.close_views()
            await self.loop.stop()
            self.states.forget_listener()
            if self.journal is not None:
                self.journal.detach(self)

    def abandon(self) -> None:
        """Same as `close`, for a coroutine that is torn down and cannot await."""
        self.background.end()
        if self.prefixes is not None:
            self.prefixes.abandon()
        self.registry.close_views()
        self.loop.abandon()
        self.states.forget_listener()

    @property
    def storage(self) -> StorageDeps:
        """Services for saving and loading."""
        return StorageDeps(self.loop, self.states, self.compiler, self.model_key, self.adapters)

    def check_maps_files(self, option: str) -> None:
        """Raises InvalidInput if files cannot be mapped into the cache."""
        if self.model.info.backend != "cpu":
            raise InvalidInput(
                f"{option}=True needs cells that files can be mapped into, which the backend "
                f"{self.model.info.backend!r} does not have; leave it out, or open the Context with backend='cpu'"
            )

    def check_publishes(self) -> None:
        """Raises InvalidInput if no server stores branches under names."""
        if not self.model.publishes:
            raise InvalidInput(
                "branches are published on a server, which keeps them for others: kv.Context.connect(url, "
                "backend='agentkv'); in this process hand the branch on, or save it to a file"
            )

    def check_owns(self, branch: Branch) -> None:
        """Raises ForeignBranch for a branch of another Context."""
        if handle_of(branch).core is not self:
            raise ForeignBranch(f"branch {branch.id} lives in another Context; open both branches in one")


class BranchRegistry:
    """Weak references to the open branches. Hidden ones, such as prompts of agents, are not shown to users.

    Attributes:
        records: of all open branches.
    """

    def __init__(self) -> None:
        self.records: weakref.WeakSet[BranchRecord] = weakref.WeakSet()
        self._shown: weakref.WeakValueDictionary[int, Branch] = weakref.WeakValueDictionary()
        self._hidden: weakref.WeakValueDictionary[int, Branch] = weakref.WeakValueDictionary()

    def add(self, branch: Branch) -> None:
        """Adds a new branch."""
        self._shown[branch.id] = branch
        self.records.add(handle_of(branch).record)

    def hide(self, branch: Branch) -> None:
        """Hides a branch from users."""
        self._hidden[branch.id] = branch
        self._shown.pop(branch.id, None)

    def remove(self, record: BranchRecord) -> None:
        """Removes a closed branch. Idempotent."""
        self._shown.pop(record.state.id, None)
        self._hidden.pop(record.state.id, None)
        self.records.discard(record)

    def close_views(self) -> None:
        """Removes the files of all branches."""
        for record in self.every():
            if record.view is not None:
                record.view.close()

    def live(self) -> list[Branch]:
        """Branches shown to users, oldest first."""
        return [branch for _, branch in sorted(self._shown.items())]

    def every(self) -> list[BranchRecord]:
        """Records of all open branches, oldest first; the Branch of one may be gone, and the record held."""
        return sorted(self.records, key=lambda record: record.state.id)
