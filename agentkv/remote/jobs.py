"""Jobs over a server, which turn its events into the native engine's records.

Generations decide locally which of the server's tokens are kept, and when another request is sent.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._types.errors import ContextFull, RemoteError
from .branches import BranchLog, OutputSpan
from .protocol import (
    EndEvent,
    ErrorEvent,
    GenerateRequest,
    LogitsEvent,
    PrefillEvent,
    RestartEvent,
    RetryEvent,
    Scores,
    ServerEvent,
    TokensEvent,
    Top,
)
from .stop_strings import StopMatcher

if TYPE_CHECKING:
    from .._documents.published import PublishedBranch
    from .engine import RemoteEngine
    from .options import RemoteOptions


class RemoteEmitted(NamedTuple):
    """A token for its reader, as `_engine.interface.Emitted`."""

    job: int
    token: int
    logprob: float
    text: bytes
    top_logprobs: Top


@dataclass(slots=True)
class RemoteFinished:
    """Outcome of a job, as `_engine.interface.Finished`."""

    job: int
    kind: str
    error: Exception | None = None
    finish_reason: Any = None
    seconds: float = 0.0
    first_token_seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)
    digests: bytes = b""
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[Top] = field(default_factory=list)
    text: bytes = b""
    prompt_tokens: int = 0
    output_began: int = -1
    logits: npt.NDArray[np.float32] | None = None
    scores: list[float] = field(default_factory=list)
    published: PublishedBranch | None = None


class RemoteJob(ABC):
    """A job on one branch, with its requests to the server."""

    kind: str

    def __init__(self, number: int, branch: BranchLog, engine: RemoteEngine) -> None:
        self.id = number
        self.request = -1  # number of the last one sent
        self.branch = branch
        self.engine = engine
        self.outcome = RemoteFinished(number, self.kind)
        self.waits = False  # for room
        self.done = False
        self._began = time.perf_counter()
        branch.job = self

    @abstractmethod
    def begin(self) -> None:
        """Sends the first request. A job that needs no server may end here."""

    @abstractmethod
    def on_answer(self, event: ServerEvent) -> None:
        """Handles an event of the server other than an error, a prefill or a retry."""

    def on_event(self, event: ServerEvent) -> None:
        """Handles an event of the server."""
        if self.done:
            return
        if isinstance(event, ErrorEvent):
            self.failed(event.error)
        elif not isinstance(event, PrefillEvent | RetryEvent):
            self.on_answer(event)

    def failed(self, error: Exception) -> None:
        """Ends the job with an error."""
        self.outcome.error = error
        self.finish()

    def ack(self, tokens: int) -> None:  # noqa: B027 - of generations alone
        """Notes that the reader took `tokens` more tokens."""

    def resume(self, made_room: bool) -> None:  # noqa: B027 - of generations alone
        """Ends the job's wait for room; `made_room` says whether there is some."""

    @property
    def fixed_from(self) -> int:
        """Position from which on the branch's tokens may not be replaced."""
        return len(self.branch)

    def shifted(self, tokens: int) -> None:  # noqa: B027 - of generations alone
        """Notes that the branch has `tokens` more tokens before the job's own."""

    def cancel(self) -> None:
        """Ends the job, and its request on the server."""
        if not self.done:
            self.engine.cancel_request(self, at_once=True)
            self.finish("cancelled")

    def finish(self, reason: str | None = None) -> None:
        """Ends the job, and reports its outcome."""
        self.done = True
        self.branch.job = None
        self.outcome.finish_reason = reason
        self.outcome.seconds = self._seconds()
        self.conclude()
        self.engine.ended(self)

    def conclude(self) -> None:  # noqa: B027 - not every kind has some
        """Sets the fields of the outcome that do not depend on how the job ended."""

    def _seconds(self) -> float:
        return time.perf_counter() - self._began


class RemoteExtendJob(RemoteJob):
    """Appends tokens. Many (`WARM_FROM`) are sent to the server at once, fewer with the next request."""

    kind = "extend"

    def __init__(self, number: int, branch: BranchLog, engine: RemoteEngine, tokens: Sequence[int]) -> None:
        super().__init__(number, branch, engine)
        self._tokens = list(tokens)
        branch.last_job = None

    def begin(self) -> None:
        whole = [*self.branch.log, *self._tokens]
        self.branch.take_root(array("i", whole))
        if self._tokens and len(whole) - self.branch.sent >= self.engine.warm_from:
            self.engine.ask_prefill(self, whole)
        else:
            self.engine.report_soon(self, PrefillEvent(0, 0))  # not at once: until it is reported, it can be cancelled

    def on_answer(self, event: ServerEvent) -> None:
        raise AssertionError("nothing but how many tokens it was given")

    def on_event(self, event: ServerEvent) -> None:
        super().on_event(event)
        if isinstance(event, PrefillEvent) and not self.done:
            self._append()
            if event.tokens:
                self.branch.sent = len(self.branch)
            self.finish()

    def _append(self) -> None:
        length = len(self.branch)
        self.branch.append(self._tokens)
        self.branch.last_job = (self.id, length)


class LogitsJob(RemoteJob):
    """Gets the next-token logits."""

    kind = "logits"

    def begin(self) -> None:
        self.engine.ask_logits(self, self.branch.log.tolist())

    def on_answer(self, event: ServerEvent) -> None:
        assert isinstance(event, LogitsEvent)
        self.outcome.logits = event.logits
        self.branch.sent = len(self.branch)
        self.finish()


class SelectJob(RemoteJob):
    """Gets the scores of continuations."""

    kind = "select"

    def __init__(self, number: int, branch: BranchLog, engine: RemoteEngine, choices: list[list[int]]) -> None:
        super().__init__(number, branch, engine)
        self._choices = choices

    def begin(self) -> None:
        self.engine.ask_select(self, self.branch.log.tolist(), self._choices)

    def on_answer(self, event: ServerEvent) -> None:
        assert isinstance(event, Scores)
        self.outcome.scores = event.logprobs
        self.branch.sent = len(self.branch)
        self.finish()


class GenerateJob(RemoteJob):
    """Generates tokens. End tokens, stop strings and limits are applied locally to the tokens of the server."""

    kind = "generate"

    def __init__(
        self, number: int, branch: BranchLog, engine: RemoteEngine, options: RemoteOptions, output: Any
    ) -> None:
        super().__init__(number, branch, engine)
        self._options = options
        self._output = output  # its JSON for the server
        self._matcher = StopMatcher(options.stop, engine.special)
        self._waiting: deque[tuple[int, float, Top]] = deque()  # received, but the reader is too far behind
        self._n_unread = 0
        self._reason: str | None = None  # the server's, once it has ended
        self._failure: Exception | None = None  # raised after the tokens in `_waiting`
        self._refused = False
        self._was_stopped = False  # by a stop string, which completes no output
        self.outcome.prompt_tokens = len(branch)
        branch.last_job = None
        self._begin_output()

    def _begin_output(self) -> None:
        """Begins a new output, unless the generation continues the branch's last."""
        constraint, last, length = self._options.constraint, self.branch.output, len(self.branch)
        if constraint is not None and (last is None or not last.is_continued_by(constraint, length)):
            self.branch.output = OutputSpan(constraint, length, length, False)

    def begin(self) -> None:
        if self._left() == 0:
            self._no_room()
            return
        self._reason = None
        self.engine.ask_generation(self, self._ask())

    def _ask(self) -> GenerateRequest:
        options, output = self._options, self.branch.output
        return GenerateRequest(
            tokens=self.branch.log.tolist(),
            max_tokens=self._left(),
            sampling=options.sampling,
            seed=options.seed,
            stream=self.branch.stream,
            stop=options.stop,
            top_logprobs=options.top_logprobs,
            output=self._output,
            ends=self.engine.eos_ids,
            n_generated=min(len(self.outcome.tokens), len(self.branch)),
            n_output=len(self.branch) - output.began if options.constraint and output else 0,
            read=options.emit,
        )

    def on_answer(self, event: ServerEvent) -> None:
        if isinstance(event, TokensEvent):
            ids = (token for top in event.tops for token, _ in top)
            if (last := max((*event.tokens, *ids), default=0)) >= self.engine.vocab_size:
                self._refuse(last)
                return
            tops = event.tops or [[]] * len(event.tokens)
            self._waiting.extend(zip(event.tokens, event.logprobs, tops, strict=True))
        elif isinstance(event, EndEvent):
            self._reason = event.reason
        elif isinstance(event, RestartEvent):
            self._forget_all()
        self._go_through()

    def _forget_all(self) -> None:
        """Discards all tokens of the generation, which begins again."""
        self.engine.branches.rollback(self.branch, max(self.outcome.prompt_tokens, 0))
        self._begin_output()
        self._waiting.clear()
        self._matcher = StopMatcher(self._options.stop, self.engine.special)
        outcome = self.outcome
        outcome.tokens, outcome.logprobs, outcome.top_logprobs = [], [], []

    def _refuse(self, token: int) -> None:
        self.engine.cancel_request(self, at_once=True)
        most = self.engine.vocab_size - 1
        self.outcome.error = RemoteError(f"the server made token {token}, but its model has ids from 0 to {most}")
        self.finish()

    def failed(self, error: Exception) -> None:
        if isinstance(error, ContextFull) and self.outcome.tokens:  # others have the rest: no policy makes room of that
            self._reason, self._refused = "context_full", True
        else:
            self._failure = error  # the reader gets what came before it
        self._go_through()

    def ack(self, tokens: int) -> None:
        self._n_unread -= tokens
        if not self.done and not self.waits:
            self._go_through()

    def resume(self, made_room: bool) -> None:
        if not self.waits:
            return
        self.waits = False
        self._refused = not made_room
        if made_room and self.outcome.tokens and self._is_lost():
            if self._options.emit:
                self._end("context_full")
                return
            self._forget_all()
        self.begin()

    def _is_lost(self) -> bool:
        """Returns whether no server can continue the tokens generated so far."""
        constrained = self._options.constraint is not None
        if constrained and (self.branch.output is None or self.branch.output.began < 0):
            return True
        return not self.engine.outputs_go_on and self._ask().depends_on_received

    @property
    def fixed_from(self) -> int:
        output = self.branch.output
        return super().fixed_from if self._options.constraint is None or output is None else output.began

    def shifted(self, tokens: int) -> None:
        self.outcome.prompt_tokens += tokens

    def conclude(self) -> None:
        self.outcome.text = self._matcher.text
        if self._options.emit:
            self.branch.last_job = (self.id, self.outcome.prompt_tokens)
        if self._options.constraint is None or self.branch.output is None:
            return
        self.outcome.output_began = self.branch.output.began
        complete = self.outcome.finish_reason in ("eos", "stop") and not self._was_stopped
        self.branch.output = self.branch.output._replace(end=len(self.branch), complete=complete)

    def _go_through(self) -> None:
        ahead = self._options.emit_ahead
        while self._waiting and not (ahead and self._n_unread >= ahead):
            reason = "length" if self._is_complete() else self._take(*self._waiting.popleft())
            if reason is not None:
                self._waiting.clear()
                self.engine.cancel_request(self, at_once=False)
                if reason == "room":
                    self._no_room()
                else:
                    self.finish(reason)
                return
        self.engine.pause(self, bool(self._waiting))
        if self._failure is not None and not self._waiting:
            super().failed(self._failure)
        elif self._reason is not None and not self._waiting:
            self._server_ended(self._reason)

    def _is_complete(self) -> bool:
        return len(self.outcome.tokens) == self._options.max_tokens

    def _take(self, token: int, logprob: float, top: Top) -> str | None:
        branch, outcome = self.branch, self.outcome
        branch.append((token,))
        branch.sent, branch.pending = len(branch) - 1, True
        if not outcome.tokens:
            outcome.first_token_seconds = self._seconds()
        outcome.tokens.append(token)
        outcome.logprobs.append(logprob)
        if self._options.top_logprobs:
            outcome.top_logprobs.append(top)
        self.engine.stats_.generated += 1
        reason = self._reason_to_end(token)
        if reason is not None:
            self._matcher.finish()
        if self._options.emit:
            self.engine.emit(RemoteEmitted(self.id, token, logprob, self._matcher.take_shown(), top))
            self._n_unread += 1
        return reason

    def _reason_to_end(self, token: int) -> str | None:
        matcher, engine = self._matcher, self.engine
        special = token in engine.special
        stopped = matcher.push_special(token) if special else matcher.push(engine.bytes_of(token))
        if token in engine.eos:
            return "stop" if matcher.cut else "eos"
        if stopped:
            self._was_stopped = True
            return "stop"
        if self._is_complete():  # whether an output is complete with it, the server knows
            return "length" if self._options.constraint is None else None
        return ("room" if self._may_ask() else "context_full") if self._left() == 0 else None

    def _server_ended(self, reason: str) -> None:
        if reason == "context_full" or (reason == "length" and not self._is_complete()):
            self._no_room()
        else:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self._matcher.finish()
        self.finish(reason)

    def _may_ask(self) -> bool:
        return self._options.wait_for_room and not self._refused

    def _no_room(self) -> None:
        if self._may_ask():
            self.waits = True
            self.engine.full(self.id)
        else:
            self._end("context_full")

    def _left(self) -> int:
        """Number of tokens that the generation may still make."""
        wanted = self._options.max_tokens - len(self.outcome.tokens)
        return min(wanted, self.engine.longest - len(self.branch))
