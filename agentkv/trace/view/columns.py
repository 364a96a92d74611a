"""A trace as columns of numbers that a browser can draw, compact in memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

import numpy as np

from ..file import read_frames
from ..records import (
    AnyRecord,
    Began,
    Branched,
    CacheLevel,
    CallBegan,
    CallEnded,
    Conversed,
    Ended,
    JobBegan,
    JobEnded,
    Logged,
    Noted,
    Spelled,
    Stepped,
    TurnBegan,
    TurnEnded,
    ValueRecord,
    Verb,
)

_SHARE = np.dtype([("branch", "i8"), ("kind", "i4"), ("rows", "i4"), ("drafted", "i4"), ("accepted", "i4")])
_BORN, _ADOPTED, _LOGGED, _GENERATED = range(4)  # what changes a branch's tokens

# Columns: typecodes of `array`, which are the browser's typed arrays as well. Times are milliseconds.
_COLUMNS = {
    "step_at": "d",
    "step_took": "f",
    "step_forward": "f",
    "step_draft": "f",
    "step_prefill": "i",
    "step_decode": "i",
    "step_again": "i",
    "step_drafted": "i",
    "step_accepted": "i",
    "step_shares": "i",
    "share_first": "i",
    "share_branch": "i",
    "share_kind": "i",
    "share_rows": "i",
    "share_drafted": "i",
    "share_accepted": "i",
    "held_at": "d",
    "held_branches": "i",
    "held_used": "i",
    "held_shared": "i",
    "held_retained": "i",
    "held_bytes": "d",
    "tokens": "i",
    "log_at": "d",
    "log_branch": "i",
    "log_kind": "i",
    "log_from": "i",
    "log_first": "i",
    "log_count": "i",
    "job_branch": "i",
    "job_kind": "i",
    "job_at": "d",
    "job_end": "d",
    "job_tokens": "i",
    "job_reason": "i",
    "job_error": "i",
    "job_first_token": "f",
    "job_most": "i",
    "verb_at": "d",
    "verb_branch": "i",
    "verb_name": "i",
    "verb_a": "i",
    "piece_token": "i",
    "piece_first": "i",
}


class Columns:
    """Data of a page.

    Attributes:
        arrays: columns of numbers, by name.
        pieces: concatenated bytes of tokens.
        strings: numbers of strings that columns refer to.
        facts: all other data, JSON-compatible.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, array[Any]] = {name: array(code) for name, code in _COLUMNS.items()}
        self.pieces = bytearray()
        self.strings: dict[str, int] = {"": 0}
        self.facts: dict[str, Any] = {
            "model": {}, "branches": [], "conversations": [], "turns": [], "calls": [], "notes": [], "values": {},
            "complete": False, "end": 0.0,
        }  # fmt: skip
        self._began = 0
        self._shares: dict[bytes, int] = {}
        self._last = b""
        self._jobs: dict[int, int] = {}  # rows of running jobs
        self._made: set[int] = set()  # branches whose generation has just ended
        self._turns: dict[int, dict[str, Any]] = {}
        self._calls: dict[tuple[int, str], dict[str, Any]] = {}

    def row(self, table: str, **values: float) -> None:
        """Appends one row to a table."""
        for name, value in values.items():
            self.arrays[f"{table}_{name}"].append(value)

    def _ms(self, at: int) -> float:
        return (at - self._began) / 1e6

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    @singledispatchmethod
    def add(self, record: AnyRecord) -> None:
        """Adds the next record."""
        at = getattr(record, "at", None)
        if at is not None:
            self.facts["end"] = max(self.facts["end"], self._ms(at))

    @add.register
    def _(self, record: Began) -> None:
        self._began = record.at
        self.facts["model"] = {
            **record.model,
            "isa": record.isa,
            "agentkv": record.agentkv,
            "unix_ms": record.unix_ns / 1e6,
        }
        self.facts["model"]["capacity"] = record.options.get("capacity")

    @add.register
    def _(self, record: Stepped) -> None:
        self._last = self._last if record.shares is None else record.shares
        shares = np.frombuffer(self._last, _SHARE)
        rows, kind = shares["rows"], shares["kind"]
        self.row(
            "step", at=self._ms(record.at), took=record.took / 1e6, forward=record.forward / 1e6,
            draft=record.draft / 1e6, prefill=int(rows[kind == 0].sum()), decode=int(rows[kind == 1].sum()),
            again=int(rows[kind == 2].sum()), drafted=int(shares["drafted"].sum()),
            accepted=int(shares["accepted"].sum()), shares=self._share(shares),
        )  # fmt: skip
        self.facts["end"] = max(self.facts["end"], self._ms(record.at + record.took))

    def _share(self, shares: np.ndarray[Any, Any]) -> int:
        """Number of these shares among the distinct ones; adds new ones."""
        number = self._shares.get(self._last)
        if number is None:
            number = self._shares[self._last] = len(self._shares)
            self.arrays["share_first"].append(len(self.arrays["share_branch"]))
            for name in ("branch", "kind", "rows", "drafted", "accepted"):
                self.arrays[f"share_{name}"].extend(shares[name].tolist())
        return number

    @add.register
    def _(self, record: CacheLevel) -> None:
        self.row(
            "held", at=self._ms(record.at), branches=record.branches, used=record.cells_used,
            shared=record.cells_shared, retained=record.cells_retained, bytes=record.kv_bytes,
        )  # fmt: skip

    @add.register
    def _(self, record: Branched) -> None:
        at = self._ms(record.at)
        for branch in record.branches:
            self.facts["branches"].append([branch, at, record.how, record.source, record.reused])
            self._log(at, branch, _BORN, record.source, b"")

    @add.register
    def _(self, record: Verb) -> None:
        at, numbers = self._ms(record.at), record.numbers or [0]
        number = max(-(2**31), min(numbers[0], 2**31 - 1))  # streams of random numbers are larger
        self.row("verb", at=at, branch=record.branch, name=self._string(record.name), a=number)
        if record.name == "adopt":
            self._log(at, record.branch, _ADOPTED, record.numbers[0], b"")

    @add.register
    def _(self, record: Logged) -> None:
        kind = _GENERATED if record.branch in self._made and record.added else _LOGGED
        self._made.discard(record.branch)
        self._log(self._ms(record.at), record.branch, kind, record.kept, record.added)

    def _log(self, at: float, branch: int, kind: int, origin: int, added: bytes) -> None:
        tokens = self.arrays["tokens"]
        self.row(
            "log", at=at, branch=branch, kind=kind, first=len(tokens), count=len(added) // 4, **{"from": origin}
        )  # fmt: skip
        tokens.frombytes(added)

    @add.register
    def _(self, record: JobBegan) -> None:
        self._jobs[record.job] = len(self.arrays["job_at"])
        most = min(record.how.max_tokens, 2**31 - 1) if record.how else 0
        self.row(
            "job", branch=record.branch, kind=self._string(record.kind), at=self._ms(record.at), end=-1.0,
            tokens=record.tokens, reason=0, error=0, first_token=0.0, most=most,
        )  # fmt: skip

    @add.register
    def _(self, record: JobEnded) -> None:
        row = self._jobs.pop(record.job, None)
        if row is None:
            return
        column = self.arrays
        column["job_end"][row] = self._ms(record.at)
        column["job_reason"][row] = self._string(record.reason)
        column["job_error"][row] = self._string(record.error)
        column["job_first_token"][row] = record.first_token / 1e6
        if column["job_kind"][row] == self._string("generate"):
            column["job_tokens"][row] = len(record.tokens) // 4
            self._made.add(column["job_branch"][row])

    @add.register
    def _(self, record: ValueRecord) -> None:
        self.facts["values"][record.number] = record.json

    @add.register
    def _(self, record: Conversed) -> None:
        messages = [[number, start, end] for number, start, end, _ in record.messages]
        self.facts["conversations"].append([self._ms(record.at), record.branch, messages, record.tools])

    @add.register
    def _(self, record: TurnBegan) -> None:
        turn = {"turn": record.turn, "branch": record.branch, "at": self._ms(record.at), "end": -1.0, "error": ""}
        self._turns[record.turn] = {**turn, "tools": record.tools, "rounds": 0}
        self.facts["turns"].append(self._turns[record.turn])

    @add.register
    def _(self, record: TurnEnded) -> None:
        turn = self._turns.get(record.turn)
        if turn is not None:
            turn.update(end=self._ms(record.at), error=record.error, rounds=record.rounds)

    @add.register
    def _(self, record: CallBegan) -> None:
        self._call(record.turn, record.call, record.name, self._ms(record.at))["arguments"] = record.arguments

    @add.register
    def _(self, record: CallEnded) -> None:
        call = self._calls.get((record.turn, record.call))
        if call is None or call["end"] >= 0:
            call = self._call(record.turn, record.call, record.name, self._ms(record.at - record.took))
        call.update(
            end=call["at"] + record.took / 1e6, status=record.status, content=record.content, attempts=record.attempts
        )

    def _call(self, turn: int, name: str, tool: str, at: float) -> dict[str, Any]:
        branch = self._turns[turn]["branch"] if turn in self._turns else -1
        call = {
            "turn": turn,
            "call": name,
            "name": tool,
            "branch": branch,
            "at": at,
            "end": -1.0,
            "status": "",
            "content": "",
        }
        self._calls[turn, name] = call
        self.facts["calls"].append(call)
        return call

    @add.register
    def _(self, record: Noted) -> None:
        self.facts["notes"].append([self._ms(record.at), record.branch, record.what, record.text])

    @add.register
    def _(self, record: Spelled) -> None:
        for token, piece in zip(np.frombuffer(record.tokens, "i4").tolist(), record.pieces, strict=False):
            self.row("piece", token=token, first=len(self.pieces))
            self.pieces += piece

    @add.register
    def _(self, record: Ended) -> None:
        self.facts["complete"] = True
        self.facts["end"] = max(self.facts["end"], self._ms(record.at))


def read_columns(path: Path, progress: Callable[[float], None] | None = None) -> Columns:
    """Reads a trace. `progress` is called with the fraction read, 0 to 1. Raises TraceError."""
    columns = Columns()
    for frame in read_frames(path, progress):
        for record in frame:
            columns.add(record)
    columns.facts["strings"] = [*columns.strings]
    return columns
