"""A trace in Perfetto's format: a track of steps, one per branch, and counters of cells and bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._types.errors import InvalidInput
from .file import read_frames
from .records import (
    AnyRecord,
    Began,
    Branched,
    CacheLevel,
    CallEnded,
    JobBegan,
    JobEnded,
    Noted,
    Stepped,
    TurnBegan,
    TurnEnded,
    Verb,
)

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

_PROCESS, _STEPS, _CELLS, _BYTES, _BRANCHES = 1, 2, 3, 4, 1000  # tracks
_CALLS = 1 << 40  # tracks of calls, after those of all branches
_SEQUENCE = 1


def perfetto_of(path: Path) -> bytes:
    """Converts a trace to a `.pftrace`, for ui.perfetto.dev and its trace_processor.

    Raises:
        TraceError: the file cannot be read, or is no trace.
        InvalidInput: the package `perfetto` is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
    except ImportError as error:
        raise InvalidInput("Perfetto's format needs its package: pip install 'agentkv-sdk[trace]'") from error
    writer = _Writer(Trace())
    for frame in read_frames(path):
        for record in frame:
            writer.add(record)
    return bytes(writer.trace.SerializeToString())


class _Writer:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._branches: set[int] = set()
        self._jobs: dict[int, JobBegan] = {}
        self._turns: dict[int, TurnBegan] = {}

    def add(self, record: AnyRecord) -> None:
        if isinstance(record, Began):
            self._begin(record)
        elif isinstance(record, Stepped):
            self._slice(_STEPS, "step", record.at, record.at + record.took, forwards=record.forwards)
        elif isinstance(record, CacheLevel):
            self._count(_CELLS, record.at, record.cells_used)
            self._count(_BYTES, record.at, record.kv_bytes)
        elif isinstance(record, Branched):
            for branch in record.branches:
                self._instant(self._branch(branch), record.how, record.at, source=record.source)
        elif isinstance(record, Verb) and record.branch >= 0:
            self._instant(self._branch(record.branch), record.name, record.at, numbers=str(record.numbers))
        elif isinstance(record, Noted) and record.branch >= 0:
            self._instant(self._branch(record.branch), record.what, record.at, text=record.text)
        elif isinstance(record, JobBegan):
            self._jobs[record.job] = record
        elif isinstance(record, JobEnded) and record.job in self._jobs:
            job = self._jobs.pop(record.job)
            told = {"tokens": len(record.tokens) // 4 or job.tokens, "reason": record.reason, "error": record.error}
            self._slice(self._branch(job.branch), job.kind, job.at, record.at, **told)
        elif isinstance(record, TurnBegan):
            self._turns[record.turn] = record
        elif isinstance(record, TurnEnded) and record.turn in self._turns:
            turn = self._turns.pop(record.turn)
            self._slice(self._calls_of(turn.branch), "turn", turn.at, record.at, error=record.error)
        elif isinstance(record, CallEnded) and record.turn in self._turns:
            track = self._calls_of(self._turns[record.turn].branch)
            told = {"status": record.status, "result": record.content}
            self._slice(track, record.name, record.at - record.took, record.at, **told)

    def _begin(self, record: Began) -> None:
        packet = self._packet(record.at)
        packet.track_descriptor.uuid = _PROCESS
        packet.track_descriptor.process.pid = 1
        packet.track_descriptor.process.process_name = f"agentkv {Path(str(record.model['path'])).name}"
        self._track(_STEPS, "steps", _PROCESS, record.at)
        self._track(_CELLS, "cells used", _PROCESS, record.at).counter.SetInParent()
        self._track(_BYTES, "K/V bytes", _PROCESS, record.at).counter.SetInParent()

    def _branch(self, branch: int) -> int:
        if branch not in self._branches:
            self._branches.add(branch)
            self._track(_BRANCHES + branch, f"branch {branch}", _PROCESS, 0)
        return _BRANCHES + branch

    def _calls_of(self, branch: int) -> int:
        uuid = _CALLS + branch
        if uuid not in self._branches:
            self._branches.add(uuid)
            self._track(uuid, "turns and calls", self._branch(branch), 0)
        return uuid

    def _track(self, uuid: int, name: str, parent: int, at: int) -> Any:
        track = self._packet(at).track_descriptor
        track.uuid, track.name, track.parent_uuid = uuid, name, parent
        return track

    def _packet(self, at: int) -> Any:
        packet = self.trace.packet.add()
        packet.timestamp = at
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _slice(self, track: int, name: str, begin: int, end: int, **told: object) -> None:
        self._event(track, name, begin, "TYPE_SLICE_BEGIN", told)
        self._event(track, name, end, "TYPE_SLICE_END", {})

    def _instant(self, track: int, name: str, at: int, **told: object) -> None:
        self._event(track, name, at, "TYPE_INSTANT", told)

    def _event(self, track: int, name: str, at: int, kind: str, told: dict[str, object]) -> None:
        event = self._packet(at).track_event
        event.type = event.Type.Value(kind)
        event.track_uuid = track
        event.name = name
        for key, value in told.items():
            note = event.debug_annotations.add()
            note.name = key
            if isinstance(value, int):
                note.int_value = value
            else:
                note.string_value = str(value)

    def _count(self, track: int, at: int, value: int) -> None:
        event = self._packet(at).track_event
        event.type = event.Type.Value("TYPE_COUNTER")
        event.track_uuid = track
        event.counter_value = value
