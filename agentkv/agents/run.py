"""What a turn came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from .._errors import OutputIncomplete
from .._generation import Usage
from .._message import Message
from .calls import CallRecord

Out = TypeVar("Out")


class Missing:
    """Stands where there is no output."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(frozen=True, slots=True)
class Run(Generic[Out]):
    """One turn of an agent: `agent.run`; as `error.run`, what was done until the turn ended early.

    Attributes:
        text: the last message's content; of a turn that ended early, what there was of it.
        calls: in the order in which the model wrote them, with what became of each.
        messages: of the turn: the question, the model's messages with their calls, the results.
        usage: tokens that were generated in all rounds, and those that the branch held beside them at the end.
        rounds: messages that the model wrote.
        seconds: that the turn took.
    """

    text: str
    calls: tuple[CallRecord, ...]
    messages: tuple[Message, ...]
    usage: Usage
    rounds: int
    seconds: float
    _output: Out | Missing = field(default=MISSING)

    @property
    def rescued(self) -> int:
        """Calls that were written otherwise than the model's format has them, and read all the same."""
        return sum(call.rescued is not None for call in self.calls)

    @property
    def output(self) -> Out:
        """What the agent was asked for: the text, or a value of the type that it was given as `output`.

        Raises OutputIncomplete for a turn that ended early.
        """
        if self._output is MISSING:
            raise OutputIncomplete("the turn ended before it had an output; `calls` says what was done")
        return cast(Out, self._output)

    def __str__(self) -> str:
        return self.text
