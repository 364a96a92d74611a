"""Context.save, load and load_all: several branches in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ._branch import Branch
from ._inputs import checked_bool, checked_path
from ._loading import Loading  # here: a verb may find no file to be opened any more
from ._saving import Progress, Saved, save_branches

if TYPE_CHECKING:
    from ._home import Home
    from ._loop import StepLoop


class Storing:
    """What a Context is as far as branches are kept in files."""

    _home: Home
    _loop: StepLoop

    async def save(
        self,
        path: str | Path,
        branches: Mapping[str, Branch],
        *,
        shareable: bool = False,
        progress: Progress | None = None,
    ) -> Saved:
        """Saves several branches to one file, as they are at one moment; see `Branch.save`.

        Cells that they share are in the file once, and are shared again when it is loaded.

        Args:
            path: the file; its folder must be there.
            branches: by the names that `load_all` gives them back under.
            shareable: as of `Branch.save`.
            progress: called with the bytes that are done and the bytes in all.

        Raises:
            SnapshotError: the file cannot be written; what was there is unchanged.
        """
        self._loop.check_open()
        return await save_branches(self._home, path, branches, shareable, progress)

    async def load(
        self, path: str | Path, *, shared: bool = False, recompute: bool = False, progress: Progress | None = None
    ) -> Branch:
        """The branch of a file that `Branch.save` wrote. It goes on as the saved one would have: the same tokens,
        random draws, messages and named marks, and without a forward. `Branch.loaded` says where its cells are from.

        The file is mapped, and checked before the branch is there; it may come from anybody.

        With `shared` its pages become the cells themselves, until these are written: every Context of every process
        that loads the file so has them in memory once. Nobody may change or cut the file in place from then on (whoever
        reads a page that is gone dies of SIGBUS); replacing or removing it is harmless. Where the cache has no free
        cells in a row for it, they are copied, and `Branch.loaded.shared` says 0.

        Args:
            path: the file.
            shared: map the cells of a file that was saved with `shareable`.
            recompute: where the file is of another model with the same tokenizer, or of a cache of another kind, feed
                its tokens again instead of refusing it.
            progress: called with the bytes, or the tokens, that are done, and those in all.

        Raises:
            SnapshotError: the file is missing, unreadable, damaged, or holds no branch.
            SnapshotMismatch: it does not fit this Context, and `recompute` is False; or it has another tokenizer; or it
                is to be `shared` and was not saved for that.
            InvalidInput: it holds several branches; `shared` on another backend than the CPU's.
            ContextFull, PositionsExhausted, TooManyBranches: there is no room for it.
        """
        loaded = await self._load(path, shared, recompute, progress, one=True)
        return next(iter(loaded.values()))

    async def load_all(
        self, path: str | Path, *, shared: bool = False, recompute: bool = False, progress: Progress | None = None
    ) -> dict[str, Branch]:
        """All branches of a file, by name; all or none. Cells that they shared are shared again. See `load`."""
        return await self._load(path, shared, recompute, progress, one=False)

    async def _load(
        self, path: str | Path, shared: bool, recompute: bool, progress: Progress | None, *, one: bool
    ) -> dict[str, Branch]:
        self._loop.check_open()
        file, mapped = checked_path(path, "path", "a file"), checked_bool(shared, "shared")
        return await Loading(self._home, file, mapped, checked_bool(recompute, "recompute"), progress).run(one=one)
