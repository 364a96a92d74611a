"""A model, its cache and the step loop, for the length of an `async with` block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from .._chat.call_format import CallFormat, checked_format
from .._chat.call_habits import Rescue, checked_rescue
from .._chat.tokenizer import Tokenizer
from .._engine.commands import CellCall
from .._engine.loop import StepLoop
from .._engine.step_history import StepRecord
from .._model.drafters import Speculative
from .._model.export import exported, needs_export
from .._model.open import OpenModel, is_here, located, open_model
from .._model.options import Options
from .._state.branch_state import Histories
from .._state.observers import Observers
from .._storage.save import Progress, Saved
from .._types.checks import Prompt, checked_count, checked_path
from .._types.errors import InvalidInput, ModelError, loading
from .._types.info import ModelInfo, Stats
from .._types.log import log
from .._types.show import shown
from .branch import Branch
from .core import Home
from .handle import handle_of
from .opening import opening, sync_of
from .overflow import Overflow, checked_overflow
from .overflow_policies import Stop
from .prefill import empty_branch, prompted_branch
from .store import load_branches, save_branches

if TYPE_CHECKING:
    from ssl import SSLContext

    from .._engine.interface import CellStore, EngineHost, StepEngine
    from .._types.info import ServerState
    from ..sync.context import SyncContext


class Context:
    """One model and one KV cache, shared by any number of branches. Made by `Context.open` or `Context.connect`."""

    def __init__(self, loop: StepLoop, states: Histories, model: OpenModel, overflow: Overflow, rescue: Rescue) -> None:
        """Private: use `Context.open` or `Context.connect`."""
        self._core = Home(self, loop, states, model, overflow, rescue)

    @classmethod
    @opening
    async def open(
        cls,
        model: str | Path,
        capacity: int = 8192,
        kv_dtype: str = "fp16",
        max_batch_tokens: int = 512,
        threads: int | None = None,
        speculative: Speculative | None = None,
        backend: str | None = None,
        device: str | None = None,
        call_format: CallFormat | None = None,
        retain: int | None = None,
        window: int | None = None,
        sinks: int = 0,
        quantize_after: int | None = None,
        overflow: Overflow | None = None,
        quant: str | None = None,
        rescue: Rescue = True,
    ) -> AsyncIterator[Context]:
        """Opens a model for an `async with` block; leaving it cancels what runs and frees everything.

        Args:
            model: path of a model folder; name of a model that was pulled (`agentkv pull NAME`), or "nano"; name in
                another program's store ("ollama:qwen3:0.6b", see `agentkv list --found`);
                path of a Hugging Face folder or a GGUF file, which is exported once and found again from then on.
            capacity: cells of the cache: tokens that all branches together may hold, shared ones counted once.
            kv_dtype: of keys and values: "fp32", "fp16", "bf16", or codes of half or a quarter of the bytes of fp16:
                "int8", "int4", or "int8/int4", which keeps keys as int8 and values as int4.
            max_batch_tokens: rows of one step; longer prefills are cut into chunks.
            threads: of the process-wide pool; None leaves it as it is. MLX and CUDA do not use it.
            speculative: a strategy of `kv.spec`, or your own, for all generations that do not name another; None for
                none. Changes how many forwards they take, never what they say.
            backend: "cpu", "mlx" or "torch", which runs a Hugging Face folder as it is; None takes the model folder's
                own, or exports for "cpu".
            device: of the torch backend, such as "cuda", which is taken then; None is the CPU.
            call_format: how the model writes reasoning and calls: the name of a known format (`kv.formats.NAMES`), a
                response template as transformers reads it, or a format of your own; None takes what the folder says,
                or what its chat template writes.
            retain: most cells that closed branches leave to prompts that begin alike; None for as many as are free, 0
                for none. What was used longest ago makes room for whoever needs it, so nothing ever fails for them.
            window: the model looks at the newest so many positions alone, and cells that no layer looks at any more
                are given back: a branch takes that many and some at most, however long it gets. None leaves the
                model's own windows: cells are given back where every layer has one, memory where some have (CPU).
            sinks: the first so many positions stay in view of a window (StreamingLLM, Xiao et al. 2023); 4 is usual.
            quantize_after: keys and values of all but each branch's newest so many positions are held as int8. What was
                quantised stays so, after a rollback, too: `model_info.bit_exact` is False with it. CPU backend alone.
            overflow: what a branch does that does not fit any more, into the cache or into the positions that the
                model has: a policy of `kv.overflow`, or your own; None for `kv.overflow.Stop()`.
            quant: of the weights: "none", "file" (a GGUF file's own), "q4" to "q8" (cpu), "affine8", "affine4"
                (mlx). A model that is exported here gets it, by default "file" where it is a GGUF file and else "q4"
                or "affine4"; one that was exported must have it.
            rescue: a call of a known tool that the model writes otherwise than its format does (as JSON in a code
                block, say) is a call; False leaves it text. After two messages with such calls, of whatever branch, the
                spelling of calls is steered in the whole Context; with "steer" it is from the first message on, and no
                conversation depends on those before it.

        Raises:
            InvalidInput: an argument out of range.
            ModelError: a folder that is missing, damaged, or needs something that is not installed.
            DraftMismatch: `speculative` was made for another model.
        """
        options = Options(
            path=checked_path(model, "model"),
            capacity=capacity,
            kv_dtype=kv_dtype,
            max_batch_tokens=max_batch_tokens,
            threads=threads,
            speculative=speculative,
            backend=backend,
            device=device,
            call_format=checked_format(call_format),
            retain=retain,
            window=window,
            sinks=sinks,
            quantize_after=quantize_after,
            quant=quant,
        )
        policy = Stop() if overflow is None else checked_overflow(overflow)
        checked_rescue(rescue)
        if not is_here(options):
            options = await to_thread.run_sync(located, options)
        if needs_export(options):
            options = replace(options, path=await exported(options), quant=None)
        async with cls._running(lambda _: open_model(options), policy, rescue) as context:
            yield context

    @classmethod
    @opening
    async def connect(
        cls,
        url: str | Sequence[str],
        model: str | None = None,
        api_key: str | None = None,
        tokenizer: str | Path | None = None,
        backend: str = "vllm",
        *,
        call_format: CallFormat | None = None,
        overflow: Overflow | None = None,
        rescue: Rescue = True,
        timeout: float = 300.0,  # noqa: ASYNC109 - of each request, not of the block
        retries: int = 8,
        most_running: int = 256,
        verify: bool | str | Path | SSLContext = True,
    ) -> AsyncIterator[Context]:
        """Connects to a server for an `async with` block: the same branches, whose cells are the server's.

        A branch is a log of tokens here. Requests carry token ids, so nothing is tokenised twice, and what a fork
        shares is in the server's prefix cache. `ctx.model_info` says what the server promises: `bit_exact`,
        `top_logits`, `speculates`, `holds_cells`. A generation whose connection breaks goes on behind the tokens that
        came. Connecting itself is tried once.

        Args:
            url: such as "http://host:8000/v1"; or those of several servers of the same model: a tree of branches stays
                on one of them, as long as that answers and has room. One that does not answer now may come later.
            model: its name there; None for the first that the server names.
            api_key: what the server asks for; no log and no error shows it.
            tokenizer: the folder of the model, or of its tokenizer; None where the server hands it out ("agentkv"), or
                names a folder that is on this machine, too.
            backend: what the servers are: "vllm", or "agentkv" for `agentkv serve`.
            call_format: as of `open`.
            overflow: as of `open`.
            rescue: as of `open`.
            timeout: seconds without a byte after which a request counts as lost; above 0.
            retries: how often what got no further is asked for again: where a server does not answer, breaks off, or
                says that it has too much to do. Pauses double from 0.25 to 8 seconds: 8 retries take some 22 seconds,
                and each further one up to 8 more.
            most_running: requests that one server has at a time; more go to another one, or wait.
            verify: of TLS: certificates of known authorities, a file of your own, a context, or False for none.

        Raises:
            InvalidInput: an argument out of range.
            ModelError: the server has no such model, or its tokenizer is not to be had.
            RemoteError: no server answers, or one lets nobody in or is not what `backend` names.
        """
        try:
            with loading("what connects to servers"):
                from ..remote.connect import Remote
        except ImportError as error:
            raise ModelError(f"{error}; pip install 'agentkv-sdk[remote]'") from error
        given = (checked_format(call_format), timeout, retries, most_running, verify)
        remote = Remote(url, model, api_key, tokenizer, backend, *given)
        policy = Stop() if overflow is None else checked_overflow(overflow)
        checked_rescue(rescue)
        async with cls._running(remote.open, policy, rescue, remote.give_up) as context:
            yield context

    @classmethod
    @asynccontextmanager
    async def _running(
        cls,
        open_host: Callable[[Callable[[], None]], tuple[EngineHost, OpenModel]],
        policy: Overflow,
        rescue: Rescue,
        give_up: Callable[[], None] | None = None,
    ) -> AsyncIterator[Context]:
        """`open_host` runs on the step loop's thread, and takes what wakes that; `give_up` ends it early."""
        opened: list[OpenModel] = []
        states = Histories(Observers())
        loop = StepLoop(states)

        def open_engine() -> EngineHost:
            host, model = open_host(loop.wake)
            opened.append(model)
            return host

        await loop.start(open_engine, give_up)
        context = cls(loop, states, opened[0], policy, rescue)
        named = {"model": str(context.model_info.path), "backend": context.model_info.backend}
        log.debug("context opened", **named)
        try:
            yield context
        except GeneratorExit:  # a coroutine is torn down with the Context open
            loop.abandon()
            raise
        finally:
            await loop.stop()
            log.debug("context closed", model=named["model"], steps=context.stats.steps)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._core.chat.tokenizer

    @property
    def model_info(self) -> ModelInfo:
        """Facts of the model."""
        return self._core.model.info

    @property
    def stats(self) -> Stats:
        """What was done and is held, as of the last verb that ended; streams refresh it a few times a second."""
        return self._core.loop.snapshot.stats()

    @property
    def steps(self) -> list[StepRecord]:
        """What each of the last 4,096 steps merged, oldest first."""
        return self._core.loop.steps

    @property
    def branches(self) -> list[Branch]:
        """The live branches, oldest first."""
        return self._core.registry.live()

    def __repr__(self) -> str:
        state = f"{len(self.branches)} branches" if self._core.loop.is_open else "closed"
        return f"<Context {self.model_info.path.name}: {state}>"

    async def branch(
        self,
        prompt: Prompt | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        overflow: Overflow | None = None,
    ) -> Branch:
        """A new root branch that holds `prompt`, prefilled; without one, an empty branch.

        What the cache already has of the same tokens is shared, not computed again: of live branches, of closed ones
        (see `retain` of `Context.open`), and of prompts that are computed at this moment.

        Args:
            prompt: text, token ids, or chat messages (mappings with a `role` and a `content`, spelled out by the
                model's chat template). Control tokens that text spells are parsed, those that messages spell are not:
                for what others wrote, give messages, or `ctx.tokenizer.encode(text, parse_special=False)`.
            tools: tool definitions for the chat template; only with messages.
            template: variables for the chat template, such as `{"enable_thinking": False}`; only with messages. They
                hold for what the branch is extended with as well.
            overflow: a policy of the branch's own, and of its forks; None for the Context's.

        Raises:
            InvalidInput: an empty prompt, text without a UTF-8 form, ids outside the vocabulary, malformed messages.
            ContextFull: fewer cells are free than the prompt needs.
            PositionsExhausted: the prompt has more tokens than the model has positions.
            TooManyBranches: more live branches than the cache was built for.
        """
        self._core.loop.check_open()
        policy = None if overflow is None else checked_overflow(overflow)
        if prompt is None:
            return await empty_branch(self._core, policy)
        made = await self._core.chat.encoding.prompt(prompt, tools=tools, template=template)
        return await prompted_branch(self._core, made, policy)

    def sync(self) -> SyncContext:
        """The same Context with verbs that block, for other threads than its event loop's. Raises WrongEventLoop."""
        return sync_of(self)

    async def attach(self, name: str, *, overflow: Overflow | None = None) -> Branch:
        """A branch like the one that `Branch.publish`, or a client of `/v1/branches`, keeps on the server under this
        name: it says what that one would say, and what of it is in the server's cache is not computed again. The one on
        the server stays as it is; `publish` under the same name puts this one in its place.

        Args:
            name: of the branch.
            overflow: as of `branch`.

        Raises:
            BranchNotFound: there is none; the message says which there are.
            InvalidInput: no name, or no server of `agentkv serve`.
            RemoteError: no server answers, or it keeps what is no branch of this model.
        """
        self._core.loop.check_open()
        self._core.check_publishes()
        policy = None if overflow is None else checked_overflow(overflow)
        from .._documents.published import checked_publication
        from .publish import attach

        return await attach(self._core, checked_publication(name), policy)

    @property
    def servers(self) -> list[ServerState]:
        """The servers as they are now, in the order of `url`; none where the model is in this process."""
        return self._core.model.servers()

    async def save(
        self,
        path: str | Path,
        branches: Mapping[str, Branch],
        *,
        shareable: bool = False,
        progress: Progress | None = None,
    ) -> Saved:
        """Saves several branches to one file, as they are at one moment; see `Branch.save`.

        Cells that they share are in the file once, and are shared again when it is loaded.

        Args:
            path: the file; its folder must be there.
            branches: by the names that `load_all` gives them back under.
            shareable: as of `Branch.save`.
            progress: called with the bytes that are done and the bytes in all.

        Raises:
            SnapshotError: the file cannot be written; what was there is unchanged.
        """
        self._core.loop.check_open()
        return await save_branches(self._core, path, branches, shareable, progress)

    async def load(
        self, path: str | Path, *, shared: bool = False, recompute: bool = False, progress: Progress | None = None
    ) -> Branch:
        """The branch of a file that `Branch.save` wrote. It goes on as the saved one would have: the same tokens,
        random draws, messages and named marks, and without a forward. `Branch.loaded` says where its cells are from.

        The file is mapped, and checked before the branch is there; it may come from anybody.

        With `shared` its pages become the cells themselves, until these are written: every Context of every process
        that loads the file so has them in memory once. Nobody may change or cut the file in place from then on (whoever
        reads a page that is gone dies of SIGBUS); replacing or removing it is harmless. Where the cache has no free
        cells in a row for it, they are copied, and `Branch.loaded.shared` says 0.

        Args:
            path: the file.
            shared: map the cells of a file that was saved with `shareable`.
            recompute: where the file is of another model with the same tokenizer, or of a cache of another kind, feed
                its tokens again instead of refusing it.
            progress: called with the bytes, or the tokens, that are done, and those in all.

        Raises:
            SnapshotError: the file is missing, unreadable, damaged, or holds no branch.
            SnapshotMismatch: it does not fit this Context, and `recompute` is False; or it has another tokenizer; or it
                is to be `shared` and was not saved for that.
            InvalidInput: it holds several branches; `shared` on another backend than the CPU's.
            ContextFull, PositionsExhausted, TooManyBranches: there is no room for it.
        """
        loaded = await load_branches(self._core, path, shared, recompute, progress, one=True)
        return next(iter(loaded.values()))

    async def load_all(
        self, path: str | Path, *, shared: bool = False, recompute: bool = False, progress: Progress | None = None
    ) -> dict[str, Branch]:
        """All branches of a file, by name; all or none. Cells that they shared are shared again. See `load`."""
        return await load_branches(self._core, path, shared, recompute, progress, one=False)

    async def keep(self, *branches: Branch | Iterable[Branch]) -> None:
        """Closes every other branch of this Context, agents' prompts too, and waits until their cells are free."""
        self._core.loop.check_open()
        kept: set[int] = set()
        for item in branches:
            try:
                given = [item] if isinstance(item, Branch) else list(item)
            except Exception:
                given = [item]  # type: ignore[list-item]
            for branch in given:
                if not isinstance(branch, Branch):
                    raise InvalidInput(f"keep was given {shown(branch)}, but it takes branches")
                self._core.check_owns(branch)
                handle_of(branch).check_open()
                kept.add(branch.id)
        for branch in self._core.registry.every():
            if branch.id not in kept:
                branch.close()
        await self._core.loop.call(lambda _: None)  # verbs apply in order: the branches are free after this one

    async def compact(self, *, retain: int | None = None) -> int:
        """Moves what is in the cache together, and gives memory that is free then back to the system.

        Nothing else changes: branches go on to the bit. A Context that has nothing to do does the same by itself, where
        it gives back a quarter of the memory or more. MLX keeps its pools as they are.

        Args:
            retain: let what closed branches left go first, beyond so many cells; None keeps all of it.

        Returns:
            Bytes that were given back.

        Raises:
            InvalidInput: `retain` is no count.
        """
        self._core.loop.check_open()
        most = None if retain is None else checked_count(retain, "retain", 0, 2**31 - 1)

        def compact(engine: StepEngine, cells: CellStore) -> int:
            before = cells.kv_bytes
            cells.shrink(engine.compact(most))
            return max(0, before - cells.kv_bytes)  # cells that leave pages of a file take memory

        return await self._core.loop.run(CellCall(compact))
