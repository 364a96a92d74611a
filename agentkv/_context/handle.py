"""A branch as methods, streams and policies use it: the record that its views share, and the right to act on it.

Entry points for other packages: `handle_of` a Branch, `core_of` a Context.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from .._engine.loop import Closing
from .._types.errors import BranchBusy, BranchClosed, InvalidInput
from .lease import acting_lease
from .overflow_policies import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._engine.commands import Job, Worker
    from .._engine.interface import StepEngine
    from .._engine.loop import StepLoop
    from .._state.branch_state import BranchState
    from .._storage.load import Loaded
    from ..workspaces.view import WorkspaceView
    from .branch import Branch
    from .context import Context
    from .core import ContextCore
    from .generate import WaitsFor
    from .lease import TurnLease
    from .overflow import Overflow


class BranchRecord:
    """State of one branch, shared by the user's Branch and every view of it. Once it is garbage, the
    engine's branch is released.

    Attributes:
        core: services of its Context.
        state: its tokens and conversation.
        overflow: policy that makes room.
        reused: tokens that were in the cache when the branch began.
        loaded: origin of the cells of a branch that was loaded from a file.
        closed: whether it was closed.
        branch: weak reference to the Branch itself, which may be gone where views are left.
        parent: weak reference to the branch that it was forked from; None for a root.
        priority: see `Branch.priority`.
        parked: whether it waits whenever nothing runs on it, though it is in no turn.
        view: its files, where it works in a workspace.
    """

    __slots__ = (
        "__weakref__",
        "_finalizer",
        "branch",
        "closed",
        "core",
        "loaded",
        "overflow",
        "parent",
        "parked",
        "priority",
        "reused",
        "state",
        "view",
    )

    def __init__(self, core: ContextCore, state: BranchState, overflow: Overflow, reused: int) -> None:
        self.core = core
        self.state = state
        self._finalizer = weakref.finalize(self, core.loop.release, state.id)
        self._finalizer.atexit = False
        self.overflow = overflow
        self.reused = reused
        self.loaded: Loaded | None = None
        self.closed = False
        self.branch: weakref.ref[Branch] | None = None
        self.parent: weakref.ref[Branch] | None = None
        self.priority = 0.0
        self.parked = False
        self.view: WorkspaceView | None = None

    def close(self) -> bool:
        """Marks it as closed; the caller closes the engine's branch. Returns False if it was closed before."""
        was_open = not self.closed
        self.closed = True
        self._finalizer.detach()
        if self.view is not None:
            self.view.close()
        return was_open


def close_branch(record: BranchRecord) -> Closing:
    """Frees a branch and cancels its running method. Synchronous and idempotent."""
    core = record.core
    core.registry.remove(record)
    return Closing(core.loop, core.loop.close(record.state.id) if record.close() else None)


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class BranchHandle:
    """A branch, and the right to act on it. A handle keeps the engine's branch alive.

    Attributes:
        record: state that all handles of the branch share.
        lease: the turn that this handle acts for; None if for no turn.
    """

    record: BranchRecord
    lease: TurnLease | None = None

    @property
    def id(self) -> int:
        """Number of the branch within its Context."""
        return self.record.state.id

    @property
    def core(self) -> ContextCore:
        """Services of its Context."""
        return self.record.core

    @property
    def loop(self) -> StepLoop:
        """The step loop of its Context."""
        return self.record.core.loop

    @property
    def state(self) -> BranchState:
        """Its tokens and conversation, as of the last completed method call."""
        return self.record.state

    @property
    def makes_room(self) -> bool:
        """Whether a policy is called when it does not fit."""
        return not isinstance(self.record.overflow, Stop)

    @property
    def waits_for(self) -> WaitsFor:
        """What a generation on it waits for where there is no room."""
        if self.makes_room:
            return "room"
        return "nothing" if self.core.offloader is None else "cells"

    @property
    def overflow_of_forks(self) -> Overflow:
        """Policy that forks begin with: Stop while a policy makes room, so that it is not called on its own behalf."""
        return Stop() if self.state.making_room else self.record.overflow

    def check_open(self) -> None:
        """Raises ContextClosed, WrongEventLoop, BranchClosed."""
        self.loop.check_open()
        if self.record.closed:
            raise BranchClosed(f"branch {self.id} is closed; use a live branch, or fork before closing")

    def check_free(self) -> None:
        """Check of methods that change the branch or run something on it. Raises as `check_open`, and BranchBusy."""
        self.check_open()
        if self.state.lease not in (None, self.lease, acting_lease.get()):
            raise BranchBusy(f"branch {self.id} is in an agent's turn; wait for its end, or work on a fork")

    def check_started(self, verb: str) -> None:
        """Check of methods that need tokens. Raises as `check_free`, and InvalidInput."""
        self.check_free()
        if not len(self.state):
            raise InvalidInput(f"{verb} on branch {self.id}, which has no tokens; extend it first")

    async def ready(self, verb: str | None = None) -> None:
        """Check of methods that need cells: reloads offloaded ones. Awaits nothing else."""
        self.check_free()
        await self.reload()
        self.check_free()
        if verb is not None:
            self.check_started(verb)

    async def reload(self) -> None:
        """Reloads offloaded cells. Awaits nothing else."""
        while self.state.offloaded is not None:
            if self.core.offloader is None:
                await self.state.offloaded.reload()
            else:
                await self.core.offloader.reload(self)
            self.check_open()

    async def drop_offloaded(self) -> None:
        """Gives up offloaded cells for good, as the branch is to have others."""
        self.check_free()
        while self.state.offloaded is not None:
            await self.state.offloaded.drop(self.state)
            self.check_free()

    async def call(
        self,
        verb: Callable[[StepEngine], T],
        undo: Callable[[Worker, T], None] | None = None,
        on_result: Callable[[T], None] | None = None,
    ) -> T:
        """Runs an engine call, as `StepLoop.call`."""
        return await self.loop.call(verb, undo, on_result)

    async def run(self, job: Job[T]) -> T:
        """Runs a job to its end, as `StepLoop.run`."""
        with self.state.running():
            return await self.loop.run(job)


def handle_of(branch: Branch) -> BranchHandle:
    """The handle of a branch."""
    return branch._handle


def core_of(context: Context) -> ContextCore:
    """The services of a Context."""
    return context._core
