"""The jobs of branches over a server: what a request tells, as the native engine would report it."""

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

from ._stops import StopMatcher
from .asks import Again, Ask, Ended, Failed, Fed, Heard, Made, Row, Scores, Top
from .branches import Output, RemoteBranch

if TYPE_CHECKING:
    from .engine import RemoteEngine
    from .options import RemoteOptions

REACHED = {"length": "context_full"}  # the server's limit, where ours is not reached


class Emitted(NamedTuple):
    """See `_engine.Emitted`."""

    job: int
    token: int
    logprob: float
    text: bytes
    top_logprobs: Top


@dataclass(slots=True)
class Finished:
    """See `_engine.Finished`."""

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


class Job(ABC):
    """A piece of work on one branch."""

    kind: str

    def __init__(self, number: int, branch: RemoteBranch, engine: RemoteEngine) -> None:
        self.id = number
        self.request = -1  # the last that it asked
        self.branch = branch
        self.engine = engine
        self.outcome = Finished(number, self.kind)
        self.waits = False  # for room
        self.done = False
        self._began = time.perf_counter()
        branch.job = self

    @abstractmethod
    def begin(self) -> None:
        """Asks the server. What needs no server may end here."""

    @abstractmethod
    def told(self, heard: Heard) -> None:
        """The server told something, but for a failure."""

    def hear(self, heard: Heard) -> None:
        """The server told something."""
        if self.done:
            return
        if isinstance(heard, Failed):
            self.outcome.error = heard.error
            self.finish()
        elif not isinstance(heard, Fed | Again):
            self.told(heard)

    def taken(self, tokens: int) -> None:  # noqa: B027 - of generations alone
        """The reader took so many of its tokens."""

    def go_on(self, made_room: bool) -> None:  # noqa: B027 - of generations alone
        """Its wait for room is over."""

    def shifted(self, tokens: int) -> None:  # noqa: B027 - of generations alone
        """The branch has so many tokens more in front of what it makes."""

    def cancel(self) -> None:
        """Ends it, on the server too."""
        if not self.done:
            self.engine.hang_up(self, at_once=True)
            self.finish("cancelled")

    def finish(self, reason: str | None = None) -> None:
        """It has ended."""
        self.done = True
        self.branch.job = None
        self.outcome.finish_reason = reason
        self.outcome.seconds = self._seconds()
        self.conclude()
        self.engine.ended(self)

    def conclude(self) -> None:  # noqa: B027 - not every kind has some
        """The fields of the outcome that are set however it ended."""

    def _seconds(self) -> float:
        return time.perf_counter() - self._began


class ExtendJob(Job):
    """Appends tokens. The server is given them now if they are many, else with the next request."""

    kind = "extend"

    def __init__(self, number: int, branch: RemoteBranch, engine: RemoteEngine, tokens: Sequence[int]) -> None:
        super().__init__(number, branch, engine)
        self._tokens = list(tokens)
        branch.made = None

    def begin(self) -> None:
        whole = [*self.branch.log, *self._tokens]
        self.branch.take_root(array("i", whole))
        if self._tokens and len(whole) - self.branch.sent >= self.engine.warm_from:
            self.engine.ask_prefill(self, whole)
        else:
            self.engine.soon(self, Fed(0, 0))  # not at once: until it is reported, it can be cancelled

    def told(self, heard: Heard) -> None:
        raise AssertionError("nothing but how many tokens it was given")

    def hear(self, heard: Heard) -> None:
        super().hear(heard)
        if isinstance(heard, Fed) and not self.done:
            self._append()
            if heard.tokens:
                self.branch.sent = len(self.branch)
            self.finish()

    def _append(self) -> None:
        length = len(self.branch)
        self.branch.append(self._tokens)
        self.branch.made = (self.id, length)


class LogitsJob(Job):
    """The next-token logits."""

    kind = "logits"

    def begin(self) -> None:
        self.engine.ask_logits(self, self.branch.log.tolist())

    def told(self, heard: Heard) -> None:
        assert isinstance(heard, Row)
        self.outcome.logits = heard.logits
        self.branch.sent = len(self.branch)
        self.finish()


class SelectJob(Job):
    """Scores of continuations."""

    kind = "select"

    def __init__(self, number: int, branch: RemoteBranch, engine: RemoteEngine, choices: list[list[int]]) -> None:
        super().__init__(number, branch, engine)
        self._choices = choices

    def begin(self) -> None:
        self.engine.ask_select(self, self.branch.log.tolist(), self._choices)

    def told(self, heard: Heard) -> None:
        assert isinstance(heard, Scores)
        self.outcome.scores = heard.logprobs
        self.branch.sent = len(self.branch)
        self.finish()


class GenerateJob(Job):
    """Samples tokens. Which of them are kept is decided here: eos, stop strings and limits are ours."""

    kind = "generate"

    def __init__(
        self, number: int, branch: RemoteBranch, engine: RemoteEngine, options: RemoteOptions, output: Any
    ) -> None:
        super().__init__(number, branch, engine)
        self._options = options
        self._output = output  # as the server is told
        self._matcher = StopMatcher(options.stop)
        self._waiting: deque[tuple[int, float, Top]] = deque()  # told, but the reader is too far behind
        self._untaken = 0
        self._reason: str | None = None  # the server's, once it has ended
        self._refused = False
        self.outcome.prompt_tokens = len(branch)
        branch.made = None
        if options.constraint is not None:
            branch.output = Output(options.constraint, len(branch), len(branch), False)

    def begin(self) -> None:
        if self._left() == 0:
            self._no_room()
            return
        self._reason = None
        options = self._options
        ask = Ask(
            tokens=self.branch.log.tolist(),
            max_tokens=self._left(),
            sampling=options.sampling,
            seed=options.seed,
            stream=self.branch.stream,
            stop=options.stop,
            top_logprobs=options.top_logprobs,
            output=self._output,
            ends=self.engine.eos_ids,
        )
        self.engine.ask_generation(self, ask)

    def told(self, heard: Heard) -> None:
        if isinstance(heard, Made):
            tops = heard.tops or [[]] * len(heard.tokens)
            self._waiting.extend(zip(heard.tokens, heard.logprobs, tops, strict=True))
        elif isinstance(heard, Ended):
            self._reason = heard.reason
        self._go_through()

    def taken(self, tokens: int) -> None:
        self._untaken -= tokens
        if not self.done and not self.waits:
            self._go_through()

    def go_on(self, made_room: bool) -> None:
        if not self.waits:
            return
        self.waits = False
        self._refused = not made_room
        self.begin()

    def shifted(self, tokens: int) -> None:
        self.outcome.prompt_tokens += tokens

    def conclude(self) -> None:
        self.outcome.text = self._matcher.text
        if self._options.emit:
            self.branch.made = (self.id, self.outcome.prompt_tokens)
        if self._options.constraint is None or self.branch.output is None:
            return
        self.outcome.output_began = self.branch.output.began
        complete = self.outcome.finish_reason in ("eos", "stop")
        self.branch.output = self.branch.output._replace(end=len(self.branch), complete=complete)

    def _go_through(self) -> None:
        ahead = self._options.emit_ahead
        while self._waiting and not (ahead and self._untaken >= ahead):
            reason = self._take(*self._waiting.popleft())
            if reason is not None:
                self._waiting.clear()
                self.engine.hang_up(self, at_once=False)
                if reason == "room":
                    self._no_room()
                else:
                    self.finish(reason)
                return
        self.engine.hold_back(self, bool(self._waiting))
        if self._reason is not None and not self._waiting:
            self._server_ended(REACHED.get(self._reason, self._reason))

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
            self.engine.emit(Emitted(self.id, token, logprob, self._matcher.take_shown(), top))
            self._untaken += 1
        return reason

    def _reason_to_end(self, token: int) -> str | None:
        if token in self.engine.eos:
            return "eos"
        if token not in self.engine.special and self._matcher.push(self.engine.spelled(token)):
            return "stop"
        if len(self.outcome.tokens) == self._options.max_tokens:
            return "length"
        return ("room" if self._may_ask() else "context_full") if self._left() == 0 else None

    def _server_ended(self, reason: str) -> None:
        if reason == "context_full":
            self._no_room()
        else:
            self._matcher.finish()
            self.finish(reason)

    def _may_ask(self) -> bool:
        return self._options.wait_for_room and not self._refused

    def _no_room(self) -> None:
        if self._may_ask():
            self.waits = True
            self.engine.full(self.id)
        else:
            self._matcher.finish()
            self.finish("context_full")

    def _left(self) -> int:
        """Tokens that it may still make."""
        wanted = self._options.max_tokens - len(self.outcome.tokens)
        return min(wanted, self.engine.longest - len(self.branch))
