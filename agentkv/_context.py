"""A model, its cache and the step loop, for the length of an `async with` block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from ._branch import Branch
from ._call_format import CallFormat, checked_format
from ._chat import Chat
from ._commands import CellCall
from ._connecting import Connecting
from ._continuation import Continuation
from ._encoding import Encoding
from ._errors import InvalidInput
from ._exporting import exported, needs_export
from ._home import Home
from ._inputs import Prompt, checked_bool, checked_count, checked_path
from ._log import log
from ._loop import StepLoop
from ._model import EngineHost, OpenModel, is_here, located, open_model
from ._model_info import ModelInfo
from ._opening import opening, sync_of
from ._options import MOST_POSITIONS, Options
from ._overflow import Overflow, checked_overflow
from ._overflow_policies import Stop
from ._prefilling import PromptJob
from ._reply import ReplyReader
from ._shown import shown
from ._speculation import Speculative
from ._stats import Stats
from ._storing import Storing
from ._tokenizer import Tokenizer
from ._trace import StepRecord

if TYPE_CHECKING:
    from ._engine import CellStore, StepEngine
    from .sync.context import SyncContext


class Context(Storing, Connecting):
    """One model and one KV cache, shared by any number of branches. Made by `Context.open` or `Context.connect`."""

    def __init__(self, loop: StepLoop, model: OpenModel, overflow: Overflow, rescue: bool) -> None:
        """Private: use `Context.open` or `Context.connect`."""
        self._loop = loop
        info = self._info = model.info
        self._servers = model.servers
        loop.histories.trained_positions = info.trained_positions
        reader = ReplyReader(model.tokenizer, lambda: self._home.format)
        capacity = loop.snapshot.engine.capacity if info.window is None else MOST_POSITIONS
        chat = Chat(model.tokenizer, reader.find_format)
        encoding = Encoding(model.tokenizer, chat, reader, info.vocab_size, capacity, info.max_positions)
        tokenizer = Tokenizer(model.tokenizer, chat, info.vocab_size)
        self._home = Home(self, loop, encoding, reader, tokenizer, model, overflow, rescue)

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
        rescue: bool = True,
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
                block, say) is a call; False leaves it text. After two of them the spelling of calls is steered.

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
        checked_bool(rescue, "rescue")
        if not is_here(options):
            options = await to_thread.run_sync(located, options)
        if needs_export(options):
            options = replace(options, path=await exported(options), quant=None)
        async with cls._running(lambda _: open_model(options), policy, rescue) as context:
            yield context

    @classmethod
    @asynccontextmanager
    async def _running(
        cls,
        open_host: Callable[[Callable[[], None]], tuple[EngineHost, OpenModel]],
        policy: Overflow,
        rescue: bool,
        give_up: Callable[[], None] | None = None,
    ) -> AsyncIterator[Context]:
        """`open_host` runs on the step loop's thread, and takes what wakes that; `give_up` ends it early."""
        opened: list[OpenModel] = []
        loop = StepLoop()

        def open_engine() -> EngineHost:
            host, model = open_host(loop.wake)
            opened.append(model)
            return host

        await loop.start(open_engine, give_up)
        context = cls(loop, opened[0], policy, rescue)
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
        return self._home.tokenizer

    @property
    def model_info(self) -> ModelInfo:
        """Facts of the model."""
        return self._info

    @property
    def stats(self) -> Stats:
        """What was done and is held, as of the last verb that ended; streams refresh it a few times a second."""
        return self._loop.snapshot.stats()

    @property
    def steps(self) -> list[StepRecord]:
        """What each of the last 4,096 steps merged, oldest first."""
        return self._loop.steps

    @property
    def branches(self) -> list[Branch]:
        """The live branches, oldest first."""
        return self._home.branches

    def __repr__(self) -> str:
        state = f"{len(self.branches)} branches" if self._loop.is_open else "closed"
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
        self._loop.check_open()
        policy = None if overflow is None else checked_overflow(overflow)
        if prompt is None:
            return await self._empty_branch(policy)
        made = await self._home.encoding.prompt(prompt, tools=tools, template=template)
        return await self._branch_of(made, policy)

    async def _branch_of(self, made: Continuation, overflow: Overflow | None) -> Branch:
        if not made.added and made.conversation is not None:  # the chat template writes it with the first question
            branch = await self._empty_branch(overflow)
            branch._history.converse(made.conversation)
            return branch
        job = PromptJob(self._loop.histories, made)
        await self._loop.run(job)
        return Branch(self._home, job.branch, None, overflow, job.reused)

    def sync(self) -> SyncContext:
        """The same Context with verbs that block, for other threads than its event loop's. Raises WrongEventLoop."""
        return sync_of(self)

    async def keep(self, *branches: Branch | Iterable[Branch]) -> None:
        """Closes every other branch of this Context, agents' prompts too, and waits until their cells are free."""
        self._loop.check_open()
        kept: set[int] = set()
        for item in branches:
            try:
                given = [item] if isinstance(item, Branch) else list(item)
            except Exception:
                given = [item]  # type: ignore[list-item]
            for branch in given:
                if not isinstance(branch, Branch):
                    raise InvalidInput(f"keep was given {shown(branch)}, but it takes branches")
                self._home.check_owns(branch)
                branch._check()
                kept.add(branch.id)
        self._home.trunks.close()
        for branch in self.branches:
            if branch.id not in kept:
                branch.close()
        await self._loop.call(lambda _: None)  # verbs apply in order: the branches are free after this one

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
        self._loop.check_open()
        most = None if retain is None else checked_count(retain, "retain", 0, 2**31 - 1)

        def compact(engine: StepEngine, cells: CellStore) -> int:
            before = cells.kv_bytes
            cells.shrink(engine.compact(most))
            return max(0, before - cells.kv_bytes)  # cells that leave pages of a file take memory

        return await self._loop.run(CellCall(compact))

    async def _empty_branch(self, overflow: Overflow | None) -> Branch:
        branch, _ = await self._loop.call(lambda engine: engine.create(), lambda worker, made: worker.close(made[0]))
        return Branch(self._home, branch, None, overflow)
