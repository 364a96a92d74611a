"""Branch.save, Branch.offload and Branch.forget: what a branch is outside of the cache, and what is nowhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ._inputs import checked_count, checked_path
from ._offloading import Aside, InFile, InMemory  # here: a verb may find no file to be opened any more
from ._saving import Progress, Saved, save_branches

if TYPE_CHECKING:
    from ._branch import Branch
    from ._history import History
    from ._home import Home
    from ._loading import Loaded
    from ._loop import StepLoop
    from ._record import BranchRecord


class Keeping:
    """What a branch is as far as it is kept elsewhere."""

    __slots__ = ()

    _history: History
    _home: Home
    _id: int
    _loop: StepLoop
    _record: BranchRecord

    @property
    def loaded(self) -> Loaded | None:
        """Where a branch that was loaded from a file has its cells from; None for any other."""
        return self._record.loaded

    async def save(self, path: str | Path, *, shareable: bool = False, progress: Progress | None = None) -> Saved:
        """Saves the branch to a file, for `Context.load`: tokens, keys and values, messages, named marks, and what its
        random numbers depend on. Takes it as it is now, also while it runs something; it and others go on meanwhile.

        What was at `path` is replaced once the file is whole and on the disk, or else stays as it is.

        Args:
            path: the file; its folder must be there.
            shareable: lay its cells out in pages, for `Context.load(path, shared=True)`. Up to a page is added for each
                head and array.
            progress: called with the bytes that are done and the bytes in all.

        Raises:
            SnapshotError: the file cannot be written.
            InvalidInput: `shareable` on another backend than the CPU's.
        """
        self._check()
        return await save_branches(self._home, path, {"branch": cast("Branch", self)}, shareable, progress)

    async def offload(self, folder: str | Path | None = None) -> int:
        """Moves the cells that no other branch shares out of the cache, and frees them. The next verb brings them back,
        with the same bits; `mark` and `close` do not need them.

        Args:
            folder: keep them in a file without a name in this folder; None keeps them in memory.

        Returns:
            How many cells were freed.

        Raises:
            BranchBusy: the branch runs something.
            SnapshotError: the file cannot be written; the branch stays in the cache.
        """
        self._check_free()
        place = None if folder is None else checked_path(folder, "folder", "a folder")
        if self._history.aside is not None:
            return 0
        store = InMemory if place is None else partial(InFile, place)
        return await Aside(self._loop, self._id, self._history, store).offload()

    async def forget(self, p0: int, p1: int) -> int:
        """Frees the cells of the tokens at [p0, p1). The tokens stay, and so do the positions of all others; what came
        between still has in it what it saw, but from the last token on nothing sees them any more.

        This is part of the history: forks have it, it is saved, and a rollback to fewer tokens than there were takes it
        back (then the tokens are fed again when the next verb needs them, see `ctx.stats.refed`). One to as
        many tokens leaves it.

        Returns:
            How many cells are free for it: none for those that other branches share.

        Raises:
            InvalidInput: positions that are not there; or the last one, from which comes what follows.
            BranchBusy: the branch runs something.
        """
        await self._ready()
        length = len(self._history)
        last = checked_count(p1, "p1", 0, max(length - 1, 0))
        first = checked_count(p0, "p0", 0, last)
        return await self._loop.call(lambda engine: engine.forget(self._id, first, last))

    async def publish(self, name: str) -> None:
        """Has the server keep the branch, as it is now, under a name, for `Context.attach` in any process: tokens, the
        server's cells, messages, tools, named marks, the last output, and what its random numbers depend on.

        What this branch is extended by later is not there until it is published again: then it takes the place of what
        was. That is so for the branch that published it, and for one that was attached; not for their forks, nor where
        somebody else changed it there since. Sent again where its answer is lost, and done once.

        The server keeps it as it keeps the branches of `/v1/branches`, where it has the same name: until somebody
        deletes it, it was idle for long (`agentkv serve --branch-seconds`), or the server ends.

        Args:
            name: 1 to 64 letters, digits, "_", "." and "-"; the first one a letter or a digit.

        Raises:
            BranchExists: another branch has that name, or somebody changed this one there.
            BranchBusy: the branch runs something.
            InvalidInput: no name, or no server of `agentkv serve`.
            RemoteError: no server answers.
        """
        await self._ready()
        self._home.check_publishes()
        from ._published import checked_publication
        from ._publishing import publish

        await publish(cast("Branch", self), checked_publication(name))

    @property
    def offloaded(self) -> bool:
        """Are cells of the branch outside of the cache?"""
        return self._history.aside is not None

    async def _here(self) -> None:
        """Brings back what was offloaded. Awaits nothing else."""
        while self._history.aside is not None:
            await self._history.aside.bring_back()
            self._check()

    def _check(self) -> None:
        raise NotImplementedError

    async def _ready(self, verb: str | None = None) -> None:
        raise NotImplementedError

    def _check_free(self) -> None:
        raise NotImplementedError
