"""What became of running a trace again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run differs from what was recorded.

    Attributes:
        seconds: when it happened, since the recording began.
        branch: on which branch, by its number in the trace.
        job: in which job of the trace.
        index: at which token of a generation; -1 where it is the whole.
        what: "token", "logits" (the row that it was drawn from; the token is the same), "end" (the finish reason), or
            "scores".
        recorded, now: both, in words.
    """

    seconds: float
    branch: int
    job: int
    index: int
    what: Literal["token", "logits", "end", "scores"]
    recorded: str
    now: str

    def __str__(self) -> str:
        where = f", token {self.index}" if self.index >= 0 else ""
        return f"at {self.seconds:.3f} s, branch {self.branch}{where}: {self.what} was {self.recorded}, is {self.now}"


@dataclass(slots=True)
class Changed:
    """A branch that went on from another result.

    Attributes:
        branch: its number in the trace.
        recorded: what it said and heard from there on, as recorded.
        now: the same, in this run.
        stopped: why it went no further; "" where it went to its end.
    """

    branch: int
    recorded: str = ""
    now: str = ""
    stopped: str = ""


@dataclass(slots=True)
class Replayed:
    """A run of a trace, and how it compares.

    Attributes:
        compares: "digests" of logits, which must be equal to the bit, or "tokens" alone.
        why: why only tokens.
        generations, tokens, digests: so many were compared.
        differences: in the order in which they were recorded. After each, its branch goes on as it was recorded.
        left_out: what could not be run again, and why.
        changed: branches that a changed result reached.
    """

    compares: Literal["digests", "tokens"] = "digests"
    why: str = ""
    generations: int = 0
    tokens: int = 0
    digests: int = 0
    differences: list[Difference] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Is all that was compared as it was recorded?"""
        return not self.differences
