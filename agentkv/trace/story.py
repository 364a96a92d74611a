"""A trace in memory for a replay: its records in order, and the values that they refer to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._types.errors import InvalidInput, TraceError
from .file import read_frames
from .records import (
    AnyRecord,
    Began,
    Branched,
    CacheLevel,
    CallBegan,
    CallEnded,
    Ended,
    JobEnded,
    Logged,
    Spelled,
    Stepped,
    TurnBegan,
    ValueRecord,
    Verb,
)


@dataclass
class Story:
    """The records of a trace, with indices.

    Attributes:
        began: the first record.
        records: all others in order, without those of steps, cache levels, spellings and values.
        ends: ends of jobs, by job.
        values: JSON of values that records refer to, by number.
        prompts: first tokens of branches without a source, int32 bytes, by branch.
        forgotten: ranges that restored or found branches had forgotten, as (first, last, length, for room), by branch.
        turns, calls, results: turns by number, begins of calls by (turn, call), and ends of calls in order.
        complete: whether the recording was ended, not broken off.
    """

    began: Began
    records: list[AnyRecord] = field(default_factory=list)
    ends: dict[int, JobEnded] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)
    prompts: dict[int, bytes] = field(default_factory=dict)
    forgotten: dict[int, list[tuple[int, int, int, bool]]] = field(default_factory=dict)
    turns: dict[int, TurnBegan] = field(default_factory=dict)
    calls: dict[tuple[int, str], CallBegan] = field(default_factory=dict)
    results: list[CallEnded] = field(default_factory=list)
    complete: bool = False

    def value(self, number: int) -> Any:
        """The value with this number. Raises TraceError."""
        try:
            return json.loads(self.values[number])
        except (LookupError, ValueError) as error:
            raise TraceError(f"the trace is damaged: it refers to value {number}, which it does not tell") from error

    def arguments(self, result: CallEnded) -> str:
        """Canonical arguments of the call of a result; "" where its begin was not recorded."""
        call = self.calls.get((result.turn, result.call))
        return canonical(call.arguments) if call else ""

    def call(self, name: str) -> CallEnded:
        """The result of the call "TURN:CALL", or "CALL" where only one turn has such a call.

        Raises InvalidInput, which lists the calls.
        """
        turn, _, call = name.rpartition(":")
        found = [each for each in self.results if each.call == call and turn in ("", str(each.turn))]
        if len(found) == 1:
            return found[0]
        listed = "".join(
            f"\n  {each.turn}:{each.call}  {each.name}{self.arguments(each)} -> {each.content}"
            for each in (found or self.results)[:40]
        )
        what = "several calls are called" if found else "no call is called"
        raise InvalidInput(f"{what} {name!r}; name one of these by TURN:CALL{listed or ' (the trace has none)'}")


def read_story(path: Path) -> Story:
    """Reads a trace. Raises TraceError."""
    story: Story | None = None
    fresh: set[int] = set()  # branches without tokens so far
    for frame in read_frames(path):
        for record in frame:
            if story is None:
                assert isinstance(record, Began)  # read_frames checks it
                story = Story(record)
            elif not isinstance(record, Stepped | CacheLevel | Spelled):
                _add(story, record, fresh)
    assert story is not None
    return story


def canonical(arguments: str) -> str:
    """JSON arguments with sorted keys, for comparison; other text unchanged."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False)
    except ValueError:
        return arguments


def _add(story: Story, record: AnyRecord, fresh: set[int]) -> None:
    if isinstance(record, ValueRecord):
        story.values[record.number] = record.json
        return
    story.records.append(record)
    if isinstance(record, JobEnded):
        story.ends[record.job] = record
    elif isinstance(record, Branched) and record.source < 0:
        fresh.update(record.branches)
    elif isinstance(record, Logged) and record.added and record.branch in fresh:
        story.prompts[record.branch] = record.added
        fresh.discard(record.branch)
    elif isinstance(record, Verb) and record.name == "forgotten":
        first, last, at, for_room = record.numbers
        story.forgotten.setdefault(record.branch, []).append((first, last, at, bool(for_room)))
    elif isinstance(record, TurnBegan):
        story.turns[record.turn] = record
    elif isinstance(record, CallBegan):
        story.calls[record.turn, record.call] = record
    elif isinstance(record, CallEnded):
        story.results.append(record)
    elif isinstance(record, Ended):
        story.complete = True
