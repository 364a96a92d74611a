"""Results of replaying a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a replay and its recording.

    Attributes:
        seconds: time of the job's begin, in seconds since the recording began.
        branch: number of the branch in the trace.
        job: number of the job in the trace.
        index: index of the token in its generation; -1 for the whole.
        what: "token", "logits" (the row that a token was sampled from; the token is the same), "end" (the finish
            reason), or "scores".
        recorded, now: both values, as text.
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
    """A branch that continued from a changed result.

    Attributes:
        branch: its number in the trace.
        recorded: recorded text from the change on.
        now: text of this run from the change on.
        stopped: reason why the branch stopped early; "" where it reached its end.
    """

    branch: int
    recorded: str = ""
    now: str = ""
    stopped: str = ""


@dataclass(slots=True)
class Replayed:
    """A replay of a trace, and its comparison with the recording.

    Attributes:
        compares: "digests" of logits, which must be equal to the bit, or "tokens" alone.
        why: reason for comparing only tokens; "" otherwise.
        generations, tokens, digests: numbers of those compared.
        differences: differences by recorded time. After each, its branch continues as recorded.
        left_out: parts that could not be replayed, with reasons.
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
        """Whether everything that was compared equals the recording."""
        return not self.differences
