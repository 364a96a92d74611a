"""What one round of a turn came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from .._errors import OutputIncomplete
from .._generation import Generation
from .calls import CallRecord
from .run import MISSING, Missing

Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Step(Generic[Out]):
    """One message of the model, and the calls that it made: `agent.step`.

    Attributes:
        text: the message's content.
        reasoning: what the model thought before it.
        calls: with what became of each; their results are on the branch.
        generation: the tokens of the message.
        call_probability: how likely the model says that a tool is made for the request, from 0 to 1; None where the
            agent has no `call_threshold`, another message than the first is asked for, or no branch was free to ask on.
    """

    text: str
    reasoning: str
    calls: tuple[CallRecord, ...]
    generation: Generation
    _output: Out | Missing = field(default=MISSING)
    call_probability: float | None = None

    @property
    def done(self) -> bool:
        """Is it the answer: a message that made no calls, or a call of the agent's final tool?"""
        return self._output is not MISSING

    @property
    def output(self) -> Out:
        """The answer, as the agent's `output` has it. Raises OutputIncomplete where the message made calls."""
        if not self.done:
            raise OutputIncomplete("this message made calls and is no answer; take another step")
        return cast(Out, self._output)
