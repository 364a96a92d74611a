"""The interface between the SDK and an engine: verbs and jobs go in, reports and changes of logs come out.

The native engine fills it; another one, such as a remote server's, may. All calls come from one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from agentkv_runtime.engine import Engine, GenerateOptions, Stats


class LogChange(Protocol):
    """How a branch's tokens differ from those told last: the first `kept` stay, then come `appended` (int32 bytes)."""

    @property
    def branch(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def appended(self) -> bytes: ...


class Emitted(Protocol):
    """One token of a generation that hands out its tokens as they come."""

    @property
    def job(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def text(self) -> bytes: ...
    @property
    def top_logprobs(self) -> list[tuple[int, float]]: ...


class Finished(Protocol):
    """The end of a job; `kind` ("extend", "generate", "logits", "select") says which fields are filled."""

    @property
    def job(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def finish_reason(self) -> Any: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[float]: ...
    @property
    def top_logprobs(self) -> list[list[tuple[int, float]]]: ...
    @property
    def text(self) -> bytes: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_began(self) -> int: ...
    @property
    def logits(self) -> npt.NDArray[np.float32] | None: ...
    @property
    def scores(self) -> list[float]: ...


class StepReport(Protocol):
    """One step: what it merged, the tokens that it emitted and the jobs that ended, each job after its tokens."""

    @property
    def idle(self) -> bool: ...
    @property
    def forwards(self) -> int: ...
    @property
    def branches(self) -> int: ...
    @property
    def decode_rows(self) -> int: ...
    @property
    def prefill_rows(self) -> int: ...
    @property
    def emitted(self) -> Sequence[Emitted]: ...
    @property
    def finished(self) -> Sequence[Finished]: ...


class StepEngine(Protocol):
    """Branches, and the jobs that run on them. A call checks everything before it changes anything."""

    def create(self, tokens: Iterable[int] | None = None) -> tuple[int, int]:
        """A new branch, and how many of `tokens` it found in another one; the rest is to be extended."""

    def fork(self, branch: int, n: int) -> list[int]:
        """n children that share the branch's history, or none."""

    def copy(self, branch: int) -> int:
        """A branch in the same state, random stream included."""

    def rollback(self, branch: int, length: int) -> None:
        """Keeps the first `length` tokens."""

    def adopt(self, dst: int, src: int) -> None:
        """dst takes over src's history."""

    def tokens(self, branch: int) -> npt.NDArray[np.int32]:
        """The branch's tokens, a copy: int32 [length]."""

    def close(self, branch: int) -> None:
        """Frees a branch and ends its job; harmless for one that is closed."""

    def extend(self, branch: int, tokens: Iterable[int]) -> int:
        """Appends tokens. Returns the job, as all of these do."""

    def generate(self, branch: int, options: GenerateOptions) -> int:
        """Samples tokens until something ends it."""

    def logits(self, branch: int) -> int:
        """The next-token logits."""

    def select(self, branch: int, choices: Sequence[Iterable[int]]) -> int:
        """Scores choices as continuations."""

    def cancel(self, job: int) -> None:
        """Ends a job; one that has ended is left as it is."""

    def take_back(self, job: int, kept: int = 0) -> bool:
        """Ends an extend, or a generation that emits, and undoes it as far as it made more than `kept` tokens.

        False where the branch is closed or went on since: what it made stays.
        """

    def taken(self, job: int, tokens: int) -> None:
        """The reader of what a generation emits has taken so many more tokens."""

    def settle(self) -> StepReport:
        """What ends without a forward."""

    def step(self) -> StepReport:
        """At most one merged forward over the next row of every job."""

    def take_changes(self) -> Sequence[LogChange]:
        """How the logs differ from what the last call said."""

    def stats(self) -> Stats:
        """Counters."""


if TYPE_CHECKING:
    _ENGINES: tuple[type[StepEngine], ...] = (Engine,)
