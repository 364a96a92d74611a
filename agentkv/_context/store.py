"""Saving and loading branches of a Context: checks arguments, and makes Branches of the loaded ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .._storage.load import LoadOperation  # here: a verb may find no file to be opened any more
from .._storage.save import Progress, Saved, SaveOperation
from .._types.checks import A_FILE, checked_bool, checked_name, checked_path
from .._types.errors import InvalidInput
from .._types.show import preview
from .handle import handle_of

if TYPE_CHECKING:
    from .branch import Branch
    from .core import ContextCore
    from .handle import BranchHandle


async def save_branches(
    core: ContextCore, path: str | Path, branches: Mapping[str, Branch], shareable: bool, progress: Progress | None
) -> Saved:
    """Saves branches by name. Raises InvalidInput, ForeignBranch, BranchClosed, ContextFull, SnapshotError."""
    from .branch import Branch

    target = checked_path(path, "path", A_FILE)
    if checked_bool(shareable, "shareable"):
        core.check_maps_files("shareable")
    if not isinstance(branches, Mapping) or len(branches) == 0:
        raise InvalidInput(f"branches is {preview(branches)}, but it must be a mapping of names to at least one branch")
    checked = {checked_name(name, "the name of a branch"): branch for name, branch in branches.items()}
    for name, branch in checked.items():
        if not isinstance(branch, Branch):
            raise InvalidInput(f"branch {name!r} is {preview(branch)}, but save takes branches")
        core.check_owns(branch)
        handle_of(branch).check_open()
    ids = {name: branch.id for name, branch in checked.items()}
    async with _all_here([handle_of(branch) for branch in checked.values()]):
        saved, tokens = await SaveOperation(core.storage, ids, target, shareable, progress).run()
    if core.journal is not None:
        await core.journal.saved(core, target.absolute(), tokens)
    return saved


@asynccontextmanager
async def _all_here(handles: Sequence[BranchHandle]) -> AsyncIterator[None]:
    """Reloads offloaded cells of all, none of which gives up its own during the block. Raises ContextFull where they do
    not fit together."""
    with ExitStack() as kept:
        for handle in handles:
            kept.enter_context(handle.state.in_use())
        for handle in handles:
            await handle.reload()
        yield


async def load_branches(
    core: ContextCore, path: str | Path, shared: bool, recompute: bool, progress: Progress | None, *, one: bool
) -> dict[str, Branch]:
    """Loads the branches of a file, by name; with `one` it must have exactly one. Raises as `Context.load`."""
    from .branch import new_branch

    core.loop.check_open()
    file = checked_path(path, "path", A_FILE)
    mapped, feeds = checked_bool(shared, "shared"), checked_bool(recompute, "recompute")
    if mapped:
        core.check_maps_files("shared")
    load = LoadOperation(core.storage, file, mapped, feeds, progress)
    run = partial(load.run, one=one)
    loaded = await (run() if core.offloader is None else core.offloader.retry(run))
    branches = {}
    for name, (id, origin) in loaded.items():
        branches[name] = new_branch(core, id, None)
        handle_of(branches[name]).record.loaded = origin
    return branches
