"""Sinks of records: the interface, and the trace file."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from .._types.tokens import common_prefix
from .file import TraceWriter
from .records import AnyRecord, Branched, JobEnded, Logged, Spelled, Stepped, Verb

MOST_RECORDS = 4096  # of a frame


class Sink(Protocol):
    """Receives records in order, on the recorder's thread."""

    def take(self, records: Sequence[AnyRecord]) -> None:
        """Receives the next records. An exception ends this sink, and nothing else."""

    def close(self) -> None:
        """Ends the sink after the last record. Idempotent."""


class FileSink:
    """Writes a trace file, without repeating what it has already.

    Not repeated are the tokens of a fork, the bytes of a token, and equal shares of successive steps.

    Args:
        path: path of the file.
        piece: returns the bytes of a token.
    """

    def __init__(self, path: Path, piece: Callable[[int], bytes]) -> None:
        self._writer = TraceWriter(path)
        self._piece = piece
        self._logs: dict[int, array[int]] = {}
        self._spelled: set[int] = set()
        self._shares: bytes | None = None

    def take(self, records: Sequence[AnyRecord]) -> None:
        """Writes the records, in frames of at most 4096, as `Sink.take`."""
        frame: list[AnyRecord] = []
        for record in records:
            if isinstance(record, Stepped):
                record = self._stepped(record)
            elif isinstance(record, Logged):
                record = self._logged(record)
                frame.extend(self._spelling(record.added))
            elif isinstance(record, JobEnded):
                frame.extend(self._spelling(record.tokens))
            else:
                self._follow(record)
            frame.append(record)
            if len(frame) >= MOST_RECORDS:
                self._writer.write(frame)
                frame = []
        if frame:
            self._writer.write(frame)

    def close(self) -> None:
        """Closes the file, as `Sink.close`."""
        self._writer.close()

    def _stepped(self, step: Stepped) -> Stepped:
        if step.shares == self._shares:
            return Stepped(step.at, step.took, step.forward, step.draft, step.forwards, None)
        self._shares = step.shares
        return step

    def _follow(self, record: AnyRecord) -> None:
        if isinstance(record, Branched):
            for branch in record.branches:
                self._logs[branch] = array("i", self._logs.get(record.source, ()))
        elif isinstance(record, Verb) and record.name == "adopt":
            self._logs[record.branch] = array("i", self._logs.get(record.numbers[0], ()))
        elif isinstance(record, Verb) and record.name == "close":
            self._logs.pop(record.branch, None)

    def _logged(self, record: Logged) -> Logged:
        """The same change, relative to the branch's tokens in the file."""
        log = self._logs.setdefault(record.branch, array("i"))
        given = array("i")
        given.frombytes(record.added)
        kept = min(record.kept, len(log))
        kept += (
            common_prefix(memoryview(log)[kept:], memoryview(given)[kept - record.kept :]) if kept == record.kept else 0
        )
        added = given[kept - record.kept :]
        del log[kept:]
        log.extend(added)
        return Logged(record.at, record.branch, kept, added.tobytes())

    def _spelling(self, tokens: bytes) -> list[AnyRecord]:
        new = array("i")
        new.frombytes(tokens)
        unknown = array("i", sorted(set(new) - self._spelled))
        if not unknown:
            return []
        self._spelled.update(unknown)
        return [Spelled(unknown.tobytes(), [self._piece(token) for token in unknown])]
