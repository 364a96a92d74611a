"""Records as structured log events, at level debug."""

from __future__ import annotations

from collections.abc import Sequence

from .._types.log import log
from .records import AnyRecord, Branched, CallBegan, CallEnded, JobBegan, JobEnded, Noted, TurnBegan, TurnEnded, Verb


class LogSink:
    """Logs each verb, job, turn and call to the logger "agentkv". Steps are too many to log."""

    def __init__(self) -> None:
        self._jobs: dict[int, JobBegan] = {}

    def take(self, records: Sequence[AnyRecord]) -> None:
        """Logs the records, as `Sink.take`."""
        for record in records:
            self._say(record)

    def close(self) -> None:
        """Does nothing, as `Sink.close`."""

    def _say(self, record: AnyRecord) -> None:
        if isinstance(record, Branched):
            log.debug(record.how, branches=record.branches, source=record.source, reused=record.reused)
        elif isinstance(record, Verb):
            log.debug(record.name, branch=record.branch, numbers=record.numbers)
        elif isinstance(record, JobBegan):
            self._jobs[record.job] = record
            log.debug(f"{record.kind} began", branch=record.branch, job=record.job, tokens=record.tokens)
        elif isinstance(record, JobEnded):
            self._end(record)
        elif isinstance(record, TurnBegan):
            log.debug("turn began", branch=record.branch, turn=record.turn, tools=record.tools)
        elif isinstance(record, TurnEnded):
            log.debug("turn ended", turn=record.turn, rounds=record.rounds, error=record.error)
        elif isinstance(record, CallBegan):
            log.debug("call began", turn=record.turn, call=record.call, name=record.name)
        elif isinstance(record, CallEnded):
            seconds = round(record.took / 1e9, 6)
            told = {"turn": record.turn, "call": record.call, "name": record.name, "status": record.status}
            log.debug("call ended", **told, s=seconds)
        elif isinstance(record, Noted):
            log.debug(record.what, branch=record.branch, text=record.text)

    def _end(self, record: JobEnded) -> None:
        began = self._jobs.pop(record.job, None)
        log.debug(
            f"{began.kind if began else 'job'} ended",
            branch=began.branch if began else -1,
            job=record.job,
            tokens=len(record.tokens) // 4,
            reason=record.reason,
            error=record.error,
            s=round((record.at - began.at) / 1e9, 6) if began else None,
        )
