"""Interruptions of generations: changes by policies that made room, and forks of a generating branch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from .records import AnyRecord, Branched, JobBegan, JobEnded, Logged, Verb


def nothing() -> array[int]:
    """An empty array of tokens."""
    return array("i")


@dataclass
class Interruption:
    """A verb on a branch, or a fork of it, during a generation.

    Attributes:
        record: the verb or the fork.
        tokens: tokens that a "replace" put into the branch.
        made: number of tokens that the generation had made by then.
    """

    record: Verb | Branched
    tokens: array[int] = field(default_factory=nothing)
    made: int = 0


@dataclass
class Interruptions:
    """Interruptions of all generations in a trace.

    Attributes:
        of_job: interruptions of each generation that ended, in order, by job.
        inside: indices of the records that belong to these generations: replaying the generation replays them.
        tokens: by the index of each other "replace", the tokens that it put into the branch.
    """

    of_job: dict[int, list[Interruption]] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)
    tokens: dict[int, array[int]] = field(default_factory=dict)


class Logs(dict[int, "array[int]"]):
    """Tokens of each branch, as of the last record followed."""

    def follow(self, record: AnyRecord) -> None:
        """Applies the next record."""
        if isinstance(record, Branched):
            for branch in record.branches:
                self[branch] = array("i", self.get(record.source, ()))
        elif isinstance(record, Verb) and record.name == "adopt":
            self[record.branch] = array("i", self.get(record.numbers[0], ()))
        elif isinstance(record, Logged):
            log = self.setdefault(record.branch, array("i"))
            del log[record.kept :]
            log.frombytes(record.added)


@dataclass
class _Running:
    """A running generation, and by how many tokens replacements have lengthened its branch (`shift`)."""

    job: int
    began: int  # length of the branch then
    shift: int = 0
    done: list[Interruption] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    unlogged: list[Interruption] = field(default_factory=list)
    taken_back: bool = False


def interruptions_of(records: Sequence[AnyRecord]) -> Interruptions:
    """Finds the interruptions in a trace's records. The branch's tokens after each one give its position."""
    found, logs = Interruptions(), Logs()
    running: dict[int, _Running] = {}  # by branch
    replaced: dict[int, int] = {}  # places, by branch
    forked: dict[int, tuple[_Running, Interruption, int]] = {}  # by the first new branch, with the shift then
    for place, record in enumerate(records):
        logs.follow(record)
        if isinstance(record, JobBegan) and record.kind == "generate":
            running[record.branch] = _Running(record.job, len(logs.get(record.branch, ())))
        elif isinstance(record, JobEnded):
            for branch, each in [*running.items()]:
                if each.job == record.job:
                    found.of_job[each.job] = each.done
                    found.inside.update(each.places)
                    del running[branch]
        elif isinstance(record, Verb) and record.name == "take_back" and record.branch in running:
            job, _, taken = record.numbers
            # Tokens logged from now on are those that were kept, which may be fewer than the generation made.
            running[record.branch].taken_back |= bool(taken) and job == running[record.branch].job
        elif isinstance(record, Branched) and record.source in running:
            generation = running[record.source]
            interruption = Interruption(record)
            generation.done.append(interruption)
            generation.places.append(place)
            forked[record.branches[0]] = generation, interruption, generation.shift
        elif isinstance(record, Verb) and record.name in ("forget", "replace"):
            if record.branch in running:
                _rewritten(running[record.branch], place, record)
            elif record.name == "replace":
                replaced[record.branch] = place
        elif isinstance(record, Logged):
            log = logs[record.branch]
            if record.branch in forked:
                generation, interruption, shift = forked.pop(record.branch)
                interruption.made = len(log) - generation.began - shift
            if record.branch in running:
                _logged(running[record.branch], place, log)
            elif record.branch in replaced:
                at = replaced.pop(record.branch)
                found.tokens[at] = _put(records[at], log)
    return found


def _rewritten(generation: _Running, place: int, record: Verb) -> None:
    interruption = Interruption(record)
    if record.name == "replace":
        first, last, count = record.numbers
        generation.shift += count - (last - first)
    generation.done.append(interruption)
    generation.unlogged.append(interruption)
    generation.places.append(place)


def _logged(generation: _Running, place: int, log: array[int]) -> None:
    for interruption in generation.unlogged:
        interruption.made = len(log) - generation.began - generation.shift
        interruption.tokens = _put(interruption.record, log)
    generation.unlogged.clear()
    if not generation.taken_back:
        generation.places.append(place)


def _put(record: AnyRecord, log: array[int]) -> array[int]:
    if not isinstance(record, Verb) or record.name != "replace":
        return nothing()
    first, _, count = record.numbers
    return log[first : first + count]
