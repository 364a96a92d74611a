"""Branches that MCP clients call by name, and files of saved ones."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..._context.branch import Branch
from ..._context.context import Context
from ..._context.named_branches import NamedBranch, NamedBranches
from ..._types.checks import ChatMessage
from ..._types.errors import InvalidInput, TooManyBranches
from ..._types.show import shortened

_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


class ServedBranches:
    """Up to `most` branches of a Context, under numbered names.

    Attributes:
        folder: folder for saved branches; None for none.
    """

    def __init__(self, context: Context, most: int, folder: Path | None) -> None:
        self.folder = folder
        self._context = context
        self._branches: NamedBranches[None] = NamedBranches(most)
        self._numbers = itertools.count(1)

    async def new(self, prompt: str | Sequence[ChatMessage] | None) -> NamedBranch[None]:
        """Makes a branch. Raises as `Context.branch` does."""
        with self._branches.reserve(1):
            return self._put(await self._context.branch(prompt), None)

    async def forks(self, name: str, count: int) -> list[NamedBranch[None]]:
        """Forks a branch. Raises as `Branch.fork` does."""
        with self._branches.reserve(count):
            return [self._put(fork, name) for fork in await self.get(name).fork(count)]

    def get(self, name: str) -> Branch:
        """Returns a branch. Raises InvalidInput for an unknown name."""
        return self._branches.get(name).branch

    async def close(self, name: str) -> None:
        """Closes a branch. Raises InvalidInput for an unknown name."""
        await self._branches.close(name)

    async def load(self, file: str) -> list[NamedBranch[None]]:
        """Loads the branches of a saved file. Raises as `Context.load_all` does, InvalidInput and TooManyBranches."""
        path = self._saved(file)
        with self._branches.reserve(1):
            loaded = list((await self._context.load_all(path)).values())
        try:
            self._branches.check_room(len(loaded))
        except TooManyBranches:
            for branch in loaded:
                branch.close()
            raise
        return [self._put(branch, None) for branch in loaded]

    def path(self, file: str) -> Path:
        """Path of a saved file. Raises InvalidInput for one outside of the folder."""
        if self.folder is None:
            raise InvalidInput("this server saves nothing: start it with --saves FOLDER")
        if not _FILE_NAME.fullmatch(file):
            raise InvalidInput(f"file is {file!r}, but it must be a plain name of letters, digits, '_', '.', '-'")
        if (self.folder / file).is_symlink():
            raise InvalidInput(f"file is {file!r}, which is a link there, and may lead out of the folder")
        return self.folder / file

    def without_folder(self, text: str) -> str:
        """Names files in a text as clients do: where the folder is on this machine, they are not told."""
        return text if self.folder is None else text.replace(f"{self.folder}{os.sep}", "")

    def tree(self) -> str:
        """Text that lists all branches, each below its parent."""
        lines = []
        for depth, entry in self._branches.tree():
            end = " ".join(entry.branch.text[-60:].split())
            lines.append(f"{'  ' * depth}{entry.name}: {len(entry.branch)} tokens, ... {end}")
        return "\n".join(lines) or "no branches yet"

    def _saved(self, file: str) -> Path:
        path = self.path(file)
        if not path.is_file():
            names = sorted(found.name for found in path.parent.glob("*") if _FILE_NAME.fullmatch(found.name))
            raise InvalidInput(f"no file {file!r} is saved; there are: {shortened(', '.join(names)) or 'none yet'}")
        return path

    def _put(self, branch: Branch, parent: str | None) -> NamedBranch[None]:
        return self._branches.add(f"b{next(self._numbers)}", branch, None, parent)
