"""Results of an agent's turn: the run, its steps, and the calls of tools in each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast

from .errors import OutputIncomplete
from .message import Message
from .results import Generation, Usage

CallStatus = Literal["done", "retry", "failed", "timeout", "invalid", "denied", "repeated", "cancelled"]


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call, as the model wrote it.

    Attributes:
        id: names the call within its turn.
        name: of the tool.
        arguments: as parsed, before the tool's own checks.
        error: why it cannot run, where it is no complete call; None otherwise.
        rescued: the spelling it was written in, where that is not the format's: "json", "python" or "tag".
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    error: str | None = None
    rescued: str | None = None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call and what became of it.

    Attributes:
        id: names the call within its turn.
        name: of the tool.
        arguments: as the model wrote them.
        result: what the tool returned; None where it did not.
        error: what the model reads instead of a result; None where there is one.
        seconds: from its start to its end, waits for approval and other attempts included.
        status: "done", "retry" (the tool raised kv.Retry), "failed" (another exception), "timeout", "invalid" (no such
            tool, one that may not be called now, or arguments that it does not take), "denied", "repeated" (not run:
            the turn had made the same call, and nothing else since), or "cancelled" (begun, and ended with its turn).
        content: what the model reads.
        attempts: how often the function was called; 0 where it never ran.
        rescued: as of the request.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    result: Any
    error: str | None
    seconds: float
    status: CallStatus
    content: str
    attempts: int
    rescued: str | None = None

    @property
    def ran(self) -> bool:
        """Was the function called, so that it may have had effects?"""
        return self.attempts > 0


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
        warnings: what looks wrong though nothing failed, each with what may help.
    """

    text: str
    calls: tuple[CallRecord, ...]
    messages: tuple[Message, ...]
    usage: Usage
    rounds: int
    seconds: float
    _output: Out | Missing = field(default=MISSING)
    warnings: tuple[str, ...] = ()

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
