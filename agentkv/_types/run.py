"""Results of an agent's turn: the run, its steps, and the calls of tools in each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast

from .errors import OutputIncomplete
from .message import Message
from .results import Generation, Usage

CallStatus = Literal["done", "retry", "failed", "timeout", "invalid", "denied", "repeated", "cancelled", "unknown"]


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A tool call, as the model wrote it.

    Attributes:
        id: unique within its turn.
        name: name of the tool.
        arguments: as parsed, before the tool's own checks.
        error: why it cannot run, where it is no complete call; None otherwise.
        rescued: its spelling, where that is not the format's: "json", "python" or "tag".
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    error: str | None = None
    rescued: str | None = None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A tool call and its outcome.

    Attributes:
        id: unique within its turn.
        name: name of the tool.
        arguments: as the model wrote them.
        result: return value of the tool; None where it did not return.
        error: the text that the model reads instead of a result; None where there is a result.
        seconds: from its start to its end, in seconds, waits for approval and other attempts included.
        status: "done", "retry" (the tool raised kv.Retry), "failed" (another exception), "timeout", "invalid" (no such
            tool, one that may not be called now, or arguments that it does not take), "denied", "repeated" (not run:
            the turn had made the same call, and nothing else since), "cancelled" (begun, and ended with its turn), or
            "unknown" (begun by a process that ended; see `kv.Journal`).
        content: the text that the model reads.
        attempts: number of times that the function was called; 0 where it never ran.
        rescued: as in CallRequest.
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
        """Whether the function was called, so that it may have had effects."""
        return self.attempts > 0


Out = TypeVar("Out")


class MissingOutput:
    """Type of the placeholder for a missing output."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = MissingOutput()


@dataclass(frozen=True, slots=True)
class Run(Generic[Out]):
    """One turn of an agent: `agent.run`; as `error.run`, the partial turn before the error.

    Attributes:
        text: the last message's content; after an early end, the part that was written.
        calls: the calls with their outcomes, in the order in which the model wrote them.
        messages: the messages of the turn: the question, the model's messages with their calls, the results.
        usage: tokens generated in all rounds, and the other tokens of the branch at the end.
        rounds: number of messages that the model wrote.
        seconds: duration of the turn, in seconds.
        warnings: suspicious facts though nothing failed, each with advice.
    """

    text: str
    calls: tuple[CallRecord, ...]
    messages: tuple[Message, ...]
    usage: Usage
    rounds: int
    seconds: float
    _output: Out | MissingOutput = field(default=MISSING)
    warnings: tuple[str, ...] = ()

    @property
    def rescued(self) -> int:
        """Number of calls that were parsed though written in another spelling than the model's format."""
        return sum(call.rescued is not None for call in self.calls)

    @property
    def output(self) -> Out:
        """The answer: the text, or a value of the agent's `output` type.

        Raises OutputIncomplete for a turn that ended early.
        """
        if self._output is MISSING:
            raise OutputIncomplete("the turn ended before it had an output; `calls` says what was done")
        return cast(Out, self._output)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Step(Generic[Out]):
    """One message of the model, and its calls: `agent.step`.

    Attributes:
        text: the message's content.
        reasoning: the model's reasoning before it.
        calls: the calls with their outcomes; their results are on the branch.
        generation: the tokens of the message.
        call_probability: the model's own probability that the request needs a tool, from 0 to 1; None where the agent
            has no `call_threshold`, this is not the turn's first message, or no branch was free for the question.
    """

    text: str
    reasoning: str
    calls: tuple[CallRecord, ...]
    generation: Generation
    _output: Out | MissingOutput = field(default=MISSING)
    call_probability: float | None = None

    @property
    def done(self) -> bool:
        """Whether this is the answer: a message without calls, or a call of the agent's final tool."""
        return self._output is not MISSING

    @property
    def output(self) -> Out:
        """The answer, of the agent's `output` type. Raises OutputIncomplete where the message made calls."""
        if not self.done:
            raise OutputIncomplete("this message made calls and is no answer; take another step")
        return cast(Out, self._output)
