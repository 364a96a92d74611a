"""A branch as verbs, streams and policies have it: its record, and the right to act on it.

Other rooms enter here: `handle_of` a Branch, `core_of` a Context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ._errors import BranchBusy, BranchClosed, InvalidInput
from ._hold import acting_hold
from ._overflow_policies import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._branch import Branch
    from ._commands import Job, Worker
    from ._context import Context
    from ._engine import StepEngine
    from ._history import History
    from ._hold import Hold
    from ._home import Home
    from ._loop import StepLoop
    from ._overflow import Overflow
    from ._record import BranchRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class BranchHandle:
    """A branch, and the right to act on it. Whoever holds one keeps the engine's branch.

    Attributes:
        record: what all handles of the branch share.
        lease: the turn that this handle acts for; None for anybody.
    """

    record: BranchRecord
    lease: Hold | None = None

    @property
    def id(self) -> int:
        """Number of the branch within its Context."""
        return self.record.state.id

    @property
    def core(self) -> Home:
        """Services of its Context."""
        return self.record.core

    @property
    def loop(self) -> StepLoop:
        """The step loop of its Context."""
        return self.record.core.loop

    @property
    def state(self) -> History:
        """Its tokens and conversation, as of the last verb that ended."""
        return self.record.state

    @property
    def makes_room(self) -> bool:
        """Whether a policy is asked where it does not fit."""
        return not isinstance(self.record.overflow, Stop)

    @property
    def overflow_of_forks(self) -> Overflow:
        """Policy that forks begin with: none is asked on behalf of itself."""
        return Stop() if self.state.asking else self.record.overflow

    def check_open(self) -> None:
        """Raises ContextClosed, WrongEventLoop, BranchClosed."""
        self.loop.check_open()
        if self.record.closed:
            raise BranchClosed(f"branch {self.id} is closed; use a live branch, or fork before closing")

    def check_free(self) -> None:
        """For verbs that change the branch, or run something on it. Raises as `check_open`, and BranchBusy."""
        self.check_open()
        if self.state.hold not in (None, self.lease, acting_hold.get()):
            raise BranchBusy(f"branch {self.id} is in an agent's turn; wait for its end, or work on a fork")

    def check_started(self, verb: str) -> None:
        """For verbs that need tokens. Raises as `check_free`, and InvalidInput."""
        self.check_free()
        if not len(self.state):
            raise InvalidInput(f"{verb} on branch {self.id}, which has no tokens; extend it first")

    async def ready(self, verb: str | None = None) -> None:
        """For verbs that need the cells: brings back those that were offloaded. Awaits nothing else."""
        self.check_free()
        await self.reload()
        self.check_free()
        if verb is not None:
            self.check_started(verb)

    async def reload(self) -> None:
        """Brings back what was offloaded. Awaits nothing else."""
        while self.state.aside is not None:
            await self.state.aside.reload()
            self.check_open()

    async def call(
        self,
        verb: Callable[[StepEngine], T],
        undo: Callable[[Worker, T], None] | None = None,
        told: Callable[[T], None] | None = None,
    ) -> T:
        """Runs a verb of the engine, as `StepLoop.call`."""
        return await self.loop.call(verb, undo, told)

    async def run(self, job: Job[T]) -> T:
        """Runs a job to its end, as `StepLoop.run`."""
        return await self.loop.run(job)


def handle_of(branch: Branch) -> BranchHandle:
    """The handle of a branch."""
    return branch._handle


def core_of(context: Context) -> Home:
    """The services of a Context."""
    return context._core
