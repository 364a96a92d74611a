"""Recorder of a Context's work, which hands records to sinks on its own thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from time import perf_counter_ns as now
from time import time_ns
from typing import TYPE_CHECKING

from .._context.handle import core_of
from .._types.log import log
from .._types.show import safe_str
from ..agents.events import ApprovalAsked, CallFinished, CallStarted, Retried, RolledBack, Steered
from .conversations import ConversationTracer, json_of
from .records import (
    VERSION,
    AnyRecord,
    Began,
    CacheLevel,
    CallBegan,
    CallEnded,
    Ended,
    Noted,
    TurnBegan,
    TurnEnded,
)

if TYPE_CHECKING:
    from .._chat.conversation import Conversation
    from .._context.context import Context
    from .._state.observers import TurnInfo
    from .sinks import Sink

FLUSH_S = 0.05  # seconds until records are in the file


class Recorder:
    """Collects records from the step loop's thread and from the event loop, in order of arrival.

    Attributes:
        error: error that ended a sink; None without one.
        records: number of records taken.
    """

    def __init__(self, ctx: Context, sinks: Sequence[Sink]) -> None:
        self._ctx = ctx
        self._sinks = list(sinks)
        self._queue: deque[AnyRecord] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentkv-trace", daemon=True)
        self._turns: dict[TurnInfo, int] = {}  # numbers of turns
        self._turn = 0
        self.error: Exception | None = None
        self.records = 0
        self.put = self._queue.append
        self._teller = ConversationTracer(self.put)
        self.put(_began(ctx))

    def start(self) -> None:
        """Starts the thread, which hands records to the sinks."""
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._stop.is_set()

    def end(self) -> None:
        """Ends the recording; the thread hands the rest to the sinks. Idempotent."""
        if not self.ended:
            self.put(Ended(now()))
            self._stop.set()

    def join(self) -> None:
        """Waits until the sinks have all records."""
        self._thread.join()

    def converse(self, branch: int, conversation: Conversation) -> None:
        """Records a branch's conversation, as `Observer.converse`."""
        self.put(self._teller.conversed(branch, conversation))

    def turn_began(self, turn: TurnInfo) -> None:
        """Records the begin of a turn, as `Observer.turn_began`."""
        self._turn += 1
        self._turns[turn] = self._turn
        self.put(TurnBegan(now(), self._turn, turn.branch, _text(turn.instructions), list(turn.tools)))

    def turn_told(self, turn: TurnInfo, event: object) -> None:
        """Records an event of a turn, as `Observer.turn_told`."""
        number, branch = self._turns.get(turn, -1), turn.branch
        if isinstance(event, CallStarted):
            call = event.call
            self.put(CallBegan(now(), number, call.id, _text(call.name), json_of(call.arguments)))
        elif isinstance(event, CallFinished):
            done = event.call
            took = int(done.seconds * 1e9)
            name, content = _text(done.name), _text(done.content)
            self.put(CallEnded(now(), number, done.id, name, done.status, content, took, done.attempts))
        elif isinstance(event, Retried):
            self.put(Noted(now(), branch, "retried", _text(f"{event.what}: {event.why}")))
        elif isinstance(event, RolledBack):
            self.put(Noted(now(), branch, "rolled back", _text(event.why)))
        elif isinstance(event, Steered):
            self.put(Noted(now(), branch, "steered", _text(event.text)))
        elif isinstance(event, ApprovalAsked):
            self.put(Noted(now(), branch, "approval asked", _text(event.call.name)))

    def turn_ended(self, turn: TurnInfo, rounds: int, error: BaseException | None) -> None:
        """Records the end of a turn, as `Observer.turn_ended`."""
        number = self._turns.pop(turn, -1)
        why = "" if error is None else _text(f"{type(error).__name__}: {safe_str(error)}")
        self.put(TurnEnded(now(), number, why, rounds))

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(FLUSH_S)
            if self._queue:
                self._flush()
        for sink in self._sinks:
            sink.close()

    def _flush(self) -> None:
        records = [self._queue.popleft() for _ in range(len(self._queue))]
        held = self._held()
        records[-1:] = [records[-1], held] if not isinstance(records[-1], Ended) else [held, records[-1]]
        self.records += len(records)
        for sink in [*self._sinks]:
            try:
                sink.take(records)
            except Exception as error:  # the Context works on without this sink
                self.error = error
                self._sinks.remove(sink)
                log.error("recording ends early", reason=safe_str(error))
                sink.close()

    def _held(self) -> CacheLevel:
        snapshot = core_of(self._ctx).loop.snapshot
        stats = snapshot.engine
        return CacheLevel(
            now(),
            stats.branches,
            stats.cells_used,
            stats.cells_shared,
            stats.cells_retained,
            snapshot.kv_bytes,
            snapshot.kv_bytes_shared,
            snapshot.states,
        )


def _began(ctx: Context) -> Began:
    from importlib.metadata import version

    from agentkv_runtime.programs import get_cpu_isa

    opened = core_of(ctx).model.options
    options = {} if opened is None else asdict(replace(opened, speculative=None, call_format=None, prefix_cache=None))
    model = asdict(ctx.model_info)
    for given in (options, model):
        given["path"] = _text(str(given.get("path", "")))
    return Began(now(), VERSION, time_ns(), version("agentkv-sdk"), get_cpu_isa(), model, options)


def _text(text: str) -> str:
    """The text with lone surrogates replaced by `?`, as UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()
