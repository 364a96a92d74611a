"""Context: a model, its cache and the step loop, for the length of an `async with` block."""

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
from .._engine.commands import CellsCall
from .._engine.loop import StepLoop
from .._model.drafters import Speculative
from .._model.export import exported, needs_export
from .._model.open import OpenModel, is_here, located, open_model
from .._model.options import Options
from .._state.branch_state import BranchStates
from .._state.observers import Observers
from .._storage.save import Progress, Saved
from .._types.adapter import Adapter
from .._types.checks import A_MODEL, A_PLACE, Prompt, checked_count, checked_name, checked_path, make_private_folder
from .._types.errors import InvalidInput, ModelError, loading
from .._types.info import ModelInfo, Stats, StepRecord
from .._types.log import log
from .._types.offload import DEFAULT_OFFLOAD, Offload, checked_offload
from .._types.show import preview
from .adapters import load_adapter
from .branch import Branch
from .core import ContextCore
from .files import checked_workspace, new_view
from .handle import close_branch, core_of, handle_of
from .opening import checked_journal, context_opener, sync_of
from .overflow import Overflow, checked_overflow
from .overflow_policies import Stop
from .prefill import empty_branch, prompted_branch
from .store import load_branches, save_branches

if TYPE_CHECKING:
    from ssl import SSLContext

    from .._engine.interface import CellStore, EngineHost, StepEngine
    from .._types.info import ServerState
    from ..journal.journal import Journal
    from ..sync.context import SyncContext
    from ..workspaces.workspace import Workspace
    from .journaling import ContextJournal


class Context:
    """One model and one KV cache, shared by any number of branches. Made by `Context.open` or `Context.connect`."""

    def __init__(
        self,
        loop: StepLoop,
        states: BranchStates,
        model: OpenModel,
        overflow: Overflow,
        rescue: Rescue,
        journal: ContextJournal | None,
        offload: Offload | None,
    ) -> None:
        """Private: use `Context.open` or `Context.connect`."""
        self._core = ContextCore(self, loop, states, model, overflow, rescue, journal, offload)

    @classmethod
    @context_opener
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
        journal: str | Path | Journal | None = None,
        prefix_cache: str | Path | None = None,
        prefix_cache_bytes: int = 4 << 30,
        offload: Offload | None = DEFAULT_OFFLOAD,
    ) -> AsyncIterator[Context]:
        """Opens a model for an `async with` block; leaving it cancels all running methods and frees everything.

        Args:
            model: path of a model folder; name of a pulled model (`agentkv pull NAME`), or "nano"; name in another
                program's store ("ollama:qwen3:0.6b", see `agentkv list --found`);
                path of a Hugging Face folder or a GGUF file, which is exported on first use and then reused.
            capacity: cells of the cache: maximum number of tokens of all branches together, shared ones counted once.
            kv_dtype: dtype of keys and values: "fp32", "fp16", "bf16", or codes of half or a quarter of the bytes of
                fp16: "int8", "int4", or "int8/int4", which stores keys as int8 and values as int4.
            max_batch_tokens: maximum rows of one step; longer prefills are cut into chunks.
            threads: size of the process-wide thread pool; None leaves it as it is. MLX and CUDA do not use it.
            speculative: a strategy of `kv.spec`, or your own, for all generations that do not name another; None for
                none. Changes the number of forwards, never the output.
            backend: "cpu", "mlx" or "torch", which runs a Hugging Face folder as it is; None takes the model folder's
                own, or exports for "cpu".
            device: device of the torch backend, such as "cuda"; implies that backend. None is the CPU.
            call_format: format in which the model writes reasoning and calls: the name of a known format
                (`kv.formats.NAMES`), a response template as transformers reads it, or your own format; None takes the
                model folder's own, or the format that its chat template writes.
            retain: maximum number of cells that closed branches leave for prompts with the same prefix; None for as
                many as are free, 0 for none. The least recently used are freed on demand, so nothing fails for them.
            window: number of newest positions that the model sees; cells that no layer sees any more are freed, so that
                the cells of a branch stay bounded, however long it gets. None leaves the model's own windows: cells are
                freed if every layer has one, memory if some have (CPU).
            sinks: number of first positions that stay visible with a window (StreamingLLM, Xiao et al. 2023); 4 is
                usual.
            quantize_after: number of newest positions of each branch that stay in `kv_dtype`; keys and values of older
                ones are stored as int8, and stay so after a rollback: `model_info.bit_exact` is False with it. CPU
                backend only.
            overflow: policy for a branch that no longer fits into the cache or the model's positions: one of
                `kv.overflow`, or your own; None for `kv.overflow.Stop()`.
            quant: quantisation of the weights: "none", "file" (a GGUF file's own), "q4" to "q8" (cpu), "affine8",
                "affine4" (mlx). A model that is exported here gets it, by default "file" for a GGUF file and else "q4"
                or "affine4"; one that was exported must have it.
            rescue: parse calls of known tools that the model writes in another spelling than its format's (as JSON in
                a code block, say); False leaves them text. After two messages with such calls, on any branch, the
                spelling of calls is steered in the whole Context; with "steer" it is from the first message on, so that
                no conversation depends on earlier ones.
            journal: a `kv.Journal`, or the path of one: a durable record of agents' turns, which another process can go
                on with.
            prefix_cache: folder for what prompts begin with (system prompts, tools, documents), made where there is
                none. What two prompts have begun with, in this process or another, and the prompts of agents are kept
                there, and read by later processes instead of being computed, with the same bits. Entries belong to the
                model, the backend and the kind of cache; processes may share the folder. It holds token ids, keys and
                values, in effect the text itself: keep it as private as your conversations. None for no such cache;
                not with `quantize_after`.
            prefix_cache_bytes: maximum bytes of that folder, at least 1 MiB; the least recently used entries go first.
            offload: which branches give up their cells where others need them, and where these go until their branch
                goes on. By default those of agents' turns that wait, for a tool or a person, say: up to 1 GiB of them
                stays in memory, others are computed again. With None all cells stay in the cache.

        Raises:
            InvalidInput: an argument out of range.
            ModelError: a model that is missing, damaged, or needs something that is not installed.
            DraftMismatch: `speculative` was made for another model.
            JournalError: the journal cannot be opened, or another process has it.
        """
        options = Options(
            path=checked_path(model, "model", A_MODEL),
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
            prefix_cache=None if prefix_cache is None else checked_path(prefix_cache, "prefix_cache", A_PLACE),
            prefix_cache_bytes=prefix_cache_bytes,
        )
        policy = Stop() if overflow is None else checked_overflow(overflow)
        checked_rescue(rescue)
        checked_offload(offload)
        record = checked_journal(journal)
        if options.prefix_cache is not None:
            await to_thread.run_sync(make_private_folder, options.prefix_cache, "prefix_cache")
        if offload is not None and offload.folder is not None:
            await to_thread.run_sync(make_private_folder, Path(offload.folder), "the folder of offload")
        if not is_here(options):
            options = await to_thread.run_sync(located, options)
        if needs_export(options):
            options = replace(options, path=await exported(options), quant=None)
        running = cls._running(lambda _: open_model(options), policy, rescue, journal=record, offload=offload)
        async with running as context:
            yield context

    @classmethod
    @context_opener
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
        """Connects to a server for an `async with` block: the same branches, with their cells on the server.

        A branch is a log of tokens here. Requests carry token ids, so nothing is tokenised twice, and a fork's shared
        prefix is in the server's prefix cache. `ctx.model_info` states the server's guarantees: `bit_exact`,
        `top_logits`, `speculates`, `holds_cells`. A generation whose connection breaks is resumed after the tokens
        received. Connecting itself is tried once.

        Args:
            url: URL such as "http://host:8000/v1"; or those of several servers of the same model: a tree of branches
                stays on one of them while that answers and has room. A server that does not answer now may join later.
            model: name of the model there; None for the first one that the server lists.
            api_key: API key of the server; no log and no error shows it.
            tokenizer: folder of the model, or of its tokenizer; None if the server provides it ("agentkv"), or names a
                folder that exists on this machine, too.
            backend: kind of the servers: "vllm", or "agentkv" for `agentkv serve`.
            call_format: see `open`.
            overflow: see `open`.
            rescue: see `open`.
            timeout: seconds without a byte after which a request counts as lost; above 0.
            retries: number of retries of a request without progress: if a server does not answer, breaks off, or is
                overloaded. Pauses double from 0.25 to 8 seconds: 8 retries take some 22 seconds, and each further one
                up to 8 more.
            most_running: maximum concurrent requests per server; more go to another one, or wait.
            verify: TLS verification: True for certificates of known authorities, a file of your own, an SSLContext, or
                False for none.

        Raises:
            InvalidInput: an argument out of range.
            ModelError: the server has no such model, or its tokenizer is not available.
            RemoteError: no server answers, or one denies access or is not of the kind that `backend` names.
        """
        try:
            with loading("what connects to servers"):
                from ..remote.connect import ConnectOptions
        except ImportError as error:
            raise ModelError(f"{error}; pip install 'agentkv-sdk[remote]'") from error
        given = (checked_format(call_format), timeout, retries, most_running, verify)
        remote = ConnectOptions(url, model, api_key, tokenizer, backend, *given)
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
        journal: ContextJournal | None = None,
        offload: Offload | None = None,
    ) -> AsyncIterator[Context]:
        """Runs a Context. `open_host` runs on the step loop's thread, and is passed a callback that wakes it; `give_up`
        ends it early."""
        opened: list[OpenModel] = []
        states = BranchStates(Observers())
        loop = StepLoop(states)

        def open_engine() -> EngineHost:
            host, model = open_host(loop.wake)
            opened.append(model)
            return host

        await loop.start(open_engine, give_up)
        context = cls(loop, states, opened[0], policy, rescue, journal, offload)
        named = {"model": str(context.model_info.path), "backend": context.model_info.backend}
        log.debug("context opened", **named)
        try:
            if journal is not None:
                journal.attach(core_of(context))
            yield context
        except GeneratorExit:  # a coroutine is torn down with the Context open
            context._core.abandon()
            raise
        finally:
            await context._core.close()
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
        """Counters and cells, as of the last completed method call; streams refresh them a few times a second."""
        prefixes, offloader = self._core.prefixes, self._core.offloader
        counts = {} if prefixes is None else prefixes.counts._asdict()
        if offloader is not None:
            counts |= offloader.stores.counts()._asdict()
        return replace(self._core.loop.snapshot.stats(), **counts)

    @property
    def steps(self) -> list[StepRecord]:
        """Records of the last 4,096 steps, oldest first."""
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
        workspace: Workspace | None = None,
        adapter: Adapter | None = None,
    ) -> Branch:
        """A new root branch with `prompt`, prefilled; without one, an empty branch.

        A prefix that the cache already has is shared, not recomputed: from live branches, from closed ones (see
        `retain` of `Context.open`), and from prompts being computed at the moment.

        Args:
            prompt: text (a str, or bytes in UTF-8), token ids, or chat messages (mappings with a `role` and a
                `content`, rendered by the model's chat template). Control tokens spelled in text are parsed, in
                messages they are not: for untrusted text, pass messages, or
                `ctx.tokenizer.encode(text, parse_special=False)`.
            tools: tool definitions for the chat template; only with messages.
            template: variables for the chat template, such as `{"enable_thinking": False}`; only with messages. They
                also apply to messages that extend the branch later.
            overflow: policy of the branch and of its forks; None for the Context's.
            workspace: a folder of whose files the branch has a copy, `Branch.workspace`; None for none.
            adapter: a LoRA adapter of this Context that the branch is computed with, `Branch.adapter`; None for none.
                Cells are shared only with branches under the same one.

        Raises:
            InvalidInput: an empty prompt, text without a UTF-8 form, ids outside the vocabulary, malformed messages.
            ContextFull: fewer cells are free than the prompt needs.
            PositionsExhausted: the prompt has more tokens than the model has positions.
            TooManyBranches: more live branches than the cache supports.
            WorkspaceError: files of the workspace cannot be read, or are too many bytes.
            AdapterError: `adapter` is no adapter of this Context.
        """
        self._core.loop.check_open()
        policy = None if overflow is None else checked_overflow(overflow)
        id = self._core.adapters.checked(adapter)
        async with new_view(checked_workspace(workspace)) as view:
            if prompt is None:
                branch = await empty_branch(self._core, policy, id)
            else:
                update = await self._core.chat.encoder.prompt(prompt, tools=tools, template=template)
                branch = await prompted_branch(self._core, update, policy, adapter=id)
            handle_of(branch).record.view = view
            return branch

    async def adapter(self, folder: str | Path, *, name: str | None = None) -> Adapter:
        """Loads a LoRA adapter, for branches of this Context until it closes.

        Its matrices are float32 beside the quantised weights; rows of other branches cost nothing more. An adapter
        that is loaded already, by what it adds, is returned as it is.

        Args:
            folder: folder as peft writes it, of `adapter_config.json` and `adapter_model.safetensors`; or a GGUF file
                of an adapter.
            name: name of the adapter; None for that of the folder or file.

        Raises:
            AdapterError: a folder or file without an adapter, one that is damaged, of another model or of a kind that
                only merging can (DoRA, trained biases, embeddings, heads, experts); or a model that adapters do not run
                beside: of another backend than "cpu", not quantised, or exported by an older version.
        """
        self._core.loop.check_open()
        path = checked_path(folder, "folder", "the folder of an adapter")
        own = path.name.removesuffix(".gguf")
        return await load_adapter(self._core, path, own if name is None else checked_name(name, "name"))

    def sync(self) -> SyncContext:
        """The same Context with blocking methods, for other threads than its event loop's. Raises WrongEventLoop."""
        return sync_of(self)

    async def attach(self, name: str, *, overflow: Overflow | None = None) -> Branch:
        """A branch equal to the one that `Branch.publish`, or a client of `/v1/branches`, has stored on the server
        under this name: it generates the same tokens, and tokens in the server's cache are not recomputed. The stored
        one is unchanged; `publish` under the same name replaces it by this one.

        Args:
            name: name of the published branch.
            overflow: see `branch`.

        Raises:
            BranchNotFound: there is none of that name; the message lists the names that exist.
            InvalidInput: an invalid name, or no server of `agentkv serve`.
            RemoteError: no server answers, or the stored branch is not of this model.
        """
        self._core.loop.check_open()
        self._core.check_publishes()
        policy = None if overflow is None else checked_overflow(overflow)
        from .._documents.published import checked_publication
        from .publish import attach

        return await attach(self._core, checked_publication(name), policy)

    @property
    def servers(self) -> list[ServerState]:
        """Present state of the servers, in the order of `url`; empty if the model is in this process."""
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

        Shared cells are in the file once, and are shared again when it is loaded.

        Args:
            path: path of the file; its folder must exist.
            branches: branches by name; `load_all` returns them under the same names.
            shareable: see `Branch.save`.
            progress: called with the bytes done and the bytes in total.

        Raises:
            SnapshotError: the file cannot be written; an existing file is unchanged.
        """
        self._core.loop.check_open()
        return await save_branches(self._core, path, branches, shareable, progress)

    async def load(
        self, path: str | Path, *, shared: bool = False, recompute: bool = False, progress: Progress | None = None
    ) -> Branch:
        """Loads the branch of a file that `Branch.save` wrote. It continues as the saved one would: the same tokens,
        random numbers, messages and named marks, without a forward. `Branch.loaded` tells the origin of its cells.

        The file is mapped, and checked before the branch is made; it may come from an untrusted source.

        With `shared` its pages become the cells themselves, until these are written: all processes that load the file
        so share one copy in memory. The file must not be changed or truncated in place from then on (a process that
        reads a missing page dies of SIGBUS); replacing or removing it is harmless. If the cache has no contiguous free
        cells for it, they are copied, and `Branch.loaded.shared` is 0.

        Args:
            path: path of the file.
            shared: map the cells of a file that was saved with `shareable`.
            recompute: if the file is from another model with the same tokenizer, or from another kind of cache, feed
                its tokens again instead of raising SnapshotMismatch.
            progress: called with the bytes (tokens when recomputing) done and in total.

        Raises:
            SnapshotError: the file is missing, unreadable, damaged, or has no branch.
            SnapshotMismatch: it does not fit this Context, and `recompute` is False; or it has another tokenizer; or
                `shared` is set and it was not saved with `shareable`.
            InvalidInput: it has several branches; `shared` on a backend other than "cpu".
            ContextFull, PositionsExhausted, TooManyBranches: there is no room for it.
        """
        loaded = await load_branches(self._core, path, shared, recompute, progress, one=True)
        return next(iter(loaded.values()))

    async def load_all(
        self, path: str | Path, *, shared: bool = False, recompute: bool = False, progress: Progress | None = None
    ) -> dict[str, Branch]:
        """All branches of a file, by name; all or none. Cells that were shared are shared again. See `load`."""
        return await load_branches(self._core, path, shared, recompute, progress, one=False)

    async def keep(self, *branches: Branch | Iterable[Branch]) -> None:
        """Closes all other branches of this Context, agents' prompts too, and waits until their cells are free."""
        self._core.loop.check_open()
        kept: set[int] = set()
        for item in branches:
            try:
                given = [item] if isinstance(item, Branch) else list(item)
            except Exception:
                given = [item]  # type: ignore[list-item]
            for branch in given:
                if not isinstance(branch, Branch):
                    raise InvalidInput(f"keep was given {preview(branch)}, but it takes branches")
                self._core.check_owns(branch)
                handle_of(branch).check_open()
                kept.add(branch.id)
        for record in self._core.registry.every():
            if record.state.id not in kept:
                close_branch(record)
        await self._core.loop.call(lambda _: None)  # commands apply in order: the branches are free after this one

    async def compact(self, *, retain: int | None = None) -> int:
        """Moves cells together, and returns the memory that is free then to the system.

        Nothing else changes: branches continue bit for bit. An idle Context does the same by itself if that returns a
        quarter of the memory or more. MLX keeps its pools as they are.

        Args:
            retain: maximum number of cells of closed branches to retain; None retains all.

        Returns:
            Number of bytes returned.

        Raises:
            InvalidInput: `retain` is no count.
        """
        self._core.loop.check_open()
        most = None if retain is None else checked_count(retain, "retain", 0, 2**31 - 1)

        def compact(engine: StepEngine, cells: CellStore) -> int:
            before = cells.kv_bytes
            cells.shrink(engine.compact(most))
            return max(0, before - cells.kv_bytes)  # cells that leave pages of a file take memory

        return await self._core.loop.run(CellsCall(compact))
