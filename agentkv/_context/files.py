"""Files that move with a branch: what its verbs do for its view of a workspace, if it has one."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from .._types.errors import InvalidInput
from .._types.mark import Mark
from .._types.show import preview

if TYPE_CHECKING:
    from ..workspaces.version import Version
    from ..workspaces.view import WorkspaceView
    from ..workspaces.workspace import Workspace
    from .branch import Branch
    from .handle import BranchHandle


def view_of(branch: Branch) -> WorkspaceView | None:
    """The files of a branch; a journal that knows the branch hears when they are applied."""
    view, journal = branch._handle.record.view, branch._handle.core.journal
    if view is not None and journal is not None:
        of = weakref.ref(branch)

        async def applied() -> None:
            branch = of()
            if branch is None or branch.closed or branch._handle.state.lease is not None:
                return  # the end of a turn records it
            await journal.changed(branch)

        view.on_apply = applied
    return view


def checked_workspace(given: object) -> Workspace | None:
    """Raises InvalidInput for what is no workspace."""
    if given is None:
        return None
    from ..workspaces.workspace import Workspace

    if not isinstance(given, Workspace):
        raise InvalidInput(f"workspace is {preview(given)}, but it must be a kv.Workspace: kv.Workspace(folder)")
    return given


@asynccontextmanager
async def new_view(workspace: Workspace | None) -> AsyncIterator[WorkspaceView | None]:
    """A view of the folder as it is, for a branch that is made in the block. Raises WorkspaceError."""
    if workspace is None:
        yield None
        return
    from ..workspaces.workspace import begin_view

    view = await to_thread.run_sync(begin_view, workspace)
    with closed_on_error([view]):
        yield view


@contextmanager
def closed_on_error(views: list[WorkspaceView]) -> Iterator[None]:
    """Closes views of branches that do not come to be."""
    try:
        yield
    except BaseException:
        for view in views:
            view.close()
        raise


def marked(handle: BranchHandle) -> Mark:
    """A mark at the end of a branch, with its files as they are. Raises WorkspaceError."""
    mark, view = handle.state.mark(), handle.record.view
    return mark if view is None else Mark(mark.branch_id, mark.length, mark.scope, mark.epoch, view.mark(mark.length))


async def checkpoint(handle: BranchHandle) -> Version | None:
    """The files of a branch as they are; None without. Raises WorkspaceError."""
    view = handle.record.view
    return None if view is None else await to_thread.run_sync(view.mark, len(handle.state))


async def forked_views(handle: BranchHandle, count: int) -> list[WorkspaceView]:
    """Views for forks of a branch, which have its files; none without. Raises WorkspaceError."""
    view = handle.record.view
    return [] if view is None else await to_thread.run_sync(view.forks, count, len(handle.state))


def give_views(branches: Iterable[BranchHandle], views: list[WorkspaceView]) -> None:
    """Gives new branches their views, if there are any."""
    for handle, view in zip(branches, views, strict=False):
        handle.record.view = view


async def go_back(handle: BranchHandle, to: Mark | int | Version) -> None:
    """Takes the files of a branch back to a version, a mark, or the last one at a length. Raises WorkspaceError."""
    view = handle.record.view
    if view is None:
        return
    match to:
        case int():
            version = view.version_at(to)
        case Mark():
            version = to.files or view.version_at(to.length)
        case _:
            version = to
    await to_thread.run_sync(view.go_back, version, len(handle.state))


@asynccontextmanager
async def adopted_files(handle: BranchHandle, other: BranchHandle) -> AsyncIterator[None]:
    """Brings the files of two branches together: on what cannot be, before the block; else behind it.

    Raises WorkspaceConflict, WorkspaceError; InvalidInput for views of different workspaces.
    """
    view, theirs = handle.record.view, other.record.view
    if theirs is None or other.record is handle.record:
        yield
    elif view is None:
        (view,) = await forked_views(other, 1)
        with closed_on_error([view]):
            yield
        handle.record.view = view
    else:
        async with _taken(view, theirs, handle):
            yield


async def take_files(handle: BranchHandle, theirs: WorkspaceView | None) -> None:
    """Brings other files into those of a branch, whose tokens stay. Raises as `adopted_files`."""
    view = handle.record.view
    if view is not None and theirs is not None:
        async with _taken(view, theirs, handle):
            pass


@asynccontextmanager
async def _taken(view: WorkspaceView, theirs: WorkspaceView, handle: BranchHandle) -> AsyncIterator[None]:
    merge = await to_thread.run_sync(view.merged_with, theirs)
    with anyio.CancelScope(shield=True):  # neither tokens nor files move alone
        yield
        await to_thread.run_sync(view.take, merge, len(handle.state))


async def roll_back(handle: BranchHandle, to: Mark | int) -> None:
    """Rolls a branch back with its files; a cancellation finds neither moved alone. Raises as `Branch.rollback`."""
    with anyio.CancelScope(shield=handle.record.view is not None):
        await rewind(handle, to)
        await go_back(handle, to)


async def rewind(handle: BranchHandle, to: Mark | int) -> None:
    """Rolls tokens and conversation back, and leaves the files as they are: for messages whose calls stay, or made
    none. Raises as `Branch.rollback`."""
    await handle.ready()
    length, epoch = handle.state.resolve(to)
    await handle.call(lambda engine: engine.rollback(handle.id, length, epoch))
