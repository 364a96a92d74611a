"""Recording of a Context's work during a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, cast

import anyio
from anyio import to_thread

from .._context.handle import core_of
from .._engine.commands import ImmediateCommand as EngineVerb
from .._types.checks import A_FILE, checked_path
from .._types.errors import ContextClosed, InvalidInput
from .._types.show import preview
from .engine import GrammarText, TracedEngine
from .log_sink import LogSink
from .recorder import Recorder
from .records import ADAPTER, Branched, Logged, Noted, Verb
from .sinks import FileSink, Sink

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._context.context import Context
    from .._engine.commands import Worker
    from .._engine.interface import StepEngine


class Recording:
    """A recording in progress. Made by `record`."""

    def __init__(self, recorder: Recorder, path: Path | None) -> None:
        self._recorder = recorder
        self.path = path

    @property
    def error(self) -> Exception | None:
        """Error that ended the recording early, such as a full disk, without an effect on the Context; None without."""
        return self._recorder.error

    @property
    def records(self) -> int:
        """Number of records taken so far."""
        return self._recorder.records

    def note(self, text: str, branch: Branch | None = None) -> None:
        """Adds a line of text to the trace, at this moment, on a branch if one is given. Raises InvalidInput."""
        if not isinstance(text, str):
            raise InvalidInput(f"text is {preview(text)}, but it must be a str")
        where = -1 if branch is None else branch.id
        self._recorder.put(Noted(now(), where, "note", text.encode("utf-8", "replace").decode()))


@asynccontextmanager
async def record(ctx: Context, path: str | Path) -> AsyncIterator[Recording]:
    """Records every step, verb, generation, turn and call in the Context, until the block is left.

        async with kv.Context.open("nano") as ctx, trace.record(ctx, "run.trace"):
            ...

    `agentkv view run.trace` shows the trace, `agentkv replay run.trace` replays it. After a crash of the process the
    file is readable up to its last whole frame (20 a second). It has the branches' content in clear, prompts and
    results of tools included.

    Args:
        ctx: an open Context.
        path: path of the file; an existing trace is overwritten.

    Raises:
        InvalidInput: `path` exists and is no trace.
        TraceError: the file cannot be written. Where that happens later, for example on a full disk, the recording
            ends, `Recording.error` has the error, and nothing else is disturbed.
    """
    where = checked_path(path, "path", A_FILE)
    sink = FileSink(where, core_of(ctx).chat.detokenizer.bytes_of)
    async with recorded(ctx, [sink]) as recorder:
        yield Recording(recorder, where)


@asynccontextmanager
async def recorded(ctx: Context, sinks: Sequence[Sink]) -> AsyncIterator[Recorder]:
    """Records the Context's work to these sinks, until the block is left."""
    core = core_of(ctx)
    loop = core.loop
    try:
        loop.check_open()
        recorder = Recorder(ctx, sinks)
        tap = AttachTracer(recorder, core.compiler.text_of, core.adapters.name_of)
        await loop.run(tap)
    except BaseException:
        for sink in sinks:
            sink.close()
        raise
    core.observers.add(recorder)
    recorder.start()
    try:
        yield recorder
    except GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
        core.observers.remove(recorder)
        recorder.end()
        if loop.is_open:
            loop.submit(DetachTracer(tap))
        raise
    finally:
        core.observers.remove(recorder)
        if not recorder.ended:
            with anyio.CancelScope(shield=True):
                with suppress(ContextClosed):  # the Context was closed first
                    await loop.run(DetachTracer(tap))
                recorder.end()
                await to_thread.run_sync(recorder.join)


@asynccontextmanager
async def logged(ctx: Context) -> AsyncIterator[None]:
    """Logs every verb, job, turn and call in the Context to the logger "agentkv" at debug, until the block is left."""
    async with recorded(ctx, [LogSink()]):
        yield


class AttachTracer(EngineVerb[None]):
    """Command that records the live branches and wraps the engine by a TracedEngine."""

    __slots__ = ("_name_of", "_recorder", "_text_of", "traced")

    def __init__(self, recorder: Recorder, text_of: GrammarText, name_of: Callable[[int], str]) -> None:
        super().__init__(undo=lambda worker, _: self.remove(worker))
        self._recorder = recorder
        self._text_of = text_of
        self._name_of = name_of
        self.traced: TracedEngine | None = None

    def _do(self, worker: Worker) -> None:
        engine, put = worker.engine, self._recorder.put
        for branch in engine.live():
            put(Branched(now(), "found", -1, [branch], [engine.rng_stream(branch)]))
            for first, last in engine.forgotten(branch):
                put(Verb(now(), "forgotten", branch, [first, last, last, 0]))  # the engine does not know when
            put(Logged(now(), branch, 0, engine.tokens(branch).tobytes()))
            for first, adapter in engine.image(branch).adapters:
                if adapter:
                    put(Noted(now(), branch, ADAPTER, f"{self._name_of(adapter)} from token {first} on"))
        engine.set_digests(True)
        self.traced = TracedEngine(engine, put, self._text_of, self._name_of)
        worker.engine = cast("StepEngine", self.traced)

    def remove(self, worker: Worker) -> None:
        """Unwraps the engine again; turns digests off after the last tracer."""
        worker.engine = _without(worker.engine, self.traced)
        if not isinstance(worker.engine, TracedEngine):
            worker.engine.set_digests(False)


class DetachTracer(EngineVerb[None]):
    """Command that removes an AttachTracer's tracer from the engine."""

    __slots__ = ("_tap",)

    def __init__(self, tap: AttachTracer) -> None:
        super().__init__()
        self._tap = tap

    def _do(self, worker: Worker) -> None:
        self._tap.remove(worker)


def _without(engine: StepEngine, traced: TracedEngine | None) -> StepEngine:
    if engine is traced:
        return engine.engine
    if isinstance(engine, TracedEngine):
        engine.engine = _without(engine.engine, traced)
    return engine
