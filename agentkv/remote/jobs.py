"""The jobs of branches over a server: what a request tells, as the native engine would report it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .asks import Again, Failed, Fed, Heard, Row, Scores, Top
from .branches import RemoteBranch

if TYPE_CHECKING:
    from .._published import PublishedBranch
    from .engine import RemoteEngine


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
    published: PublishedBranch | None = None


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
            self.failed(heard.error)
        elif not isinstance(heard, Fed | Again):
            self.told(heard)

    def failed(self, error: Exception) -> None:
        """It came to nothing."""
        self.outcome.error = error
        self.finish()

    def ack(self, tokens: int) -> None:  # noqa: B027 - of generations alone
        """The reader took so many of its tokens."""

    def resume(self, made_room: bool) -> None:  # noqa: B027 - of generations alone
        """Its wait for room is over."""

    @property
    def fixed_from(self) -> int:
        """The branch's tokens from there on may not give way."""
        return len(self.branch)

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
