"""Branches that clients call by names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._branch import Branch
from ..._context import Context
from ..._errors import InvalidInput, TooManyBranches
from ..._inputs import ChatMessage

_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


@dataclass
class Named:
    """A branch, its name and where it came from."""

    name: str
    branch: Branch
    parent: str | None = None


@dataclass
class NamedBranches:
    """Up to `most` branches of a Context.

    Attributes:
        context: theirs.
        most: of them.
        folder: for files of saved ones; None for none.
    """

    context: Context
    most: int
    folder: Path | None
    _named: dict[str, Named] = field(default_factory=dict)
    _coming: int = 0
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def new(self, prompt: str | Sequence[ChatMessage] | None) -> Named:
        """Raises as `Context.branch` does."""
        with self._room(1):
            return self._put(await self.context.branch(prompt), None)

    async def forks(self, name: str, count: int) -> list[Named]:
        """Raises as `Branch.fork` does."""
        with self._room(count):
            return [self._put(fork, name) for fork in await self.get(name).fork(count)]

    def get(self, name: str) -> Branch:
        """Raises InvalidInput for a name that no branch has."""
        named = self._named.get(name)
        if named is None or named.branch.closed:
            known = ", ".join(self._live()) or "none yet"
            raise InvalidInput(f"there is no branch {name!r}; there are: {known}")
        return named.branch

    async def close(self, name: str) -> None:
        """Frees it."""
        branch = self.get(name)
        del self._named[name]
        await branch.close()

    async def load(self, file: str) -> list[Named]:
        """The branches of a saved file. Raises as `Context.load_all` does."""
        with self._room(1):
            loaded = list((await self.context.load_all(self.path(file))).values())
        try:
            self._check_room(len(loaded))
        except TooManyBranches:
            for branch in loaded:
                branch.close()
            raise
        return [self._put(branch, None) for branch in loaded]

    def path(self, file: str) -> Path:
        """Of a saved file. Raises InvalidInput for one outside of the folder."""
        if self.folder is None:
            raise InvalidInput("this server saves nothing: start it with --saves FOLDER")
        if not _FILE_NAME.fullmatch(file):
            raise InvalidInput(f"file is {file!r}, but it must be a plain name of letters, digits, '_', '.', '-'")
        if (self.folder / file).is_symlink():
            raise InvalidInput(f"file is {file!r}, which is a link there, and may lead out of the folder")
        return self.folder / file

    def tree(self) -> str:
        """All of them, each below the one that it was forked from."""
        live = self._live()
        lines: list[str] = []

        def tell(parent: str | None, depth: int) -> None:
            for named in live.values():
                above = named.parent if named.parent in live else None
                if above == parent:
                    end = " ".join(named.branch.text[-60:].split())
                    lines.append(f"{'  ' * depth}{named.name}: {len(named.branch)} tokens, ... {end}")
                    tell(named.name, depth + 1)

        tell(None, 0)
        return "\n".join(lines) or "no branches yet"

    def _put(self, branch: Branch, parent: str | None) -> Named:
        named = Named(f"b{next(self._numbers)}", branch, parent)
        self._named[named.name] = named
        return named

    def _live(self) -> dict[str, Named]:
        return {name: named for name, named in self._named.items() if not named.branch.closed}

    @contextmanager
    def _room(self, count: int) -> Iterator[None]:
        """For so many that are about to be there: other calls may come meanwhile. Raises TooManyBranches."""
        self._check_room(count)
        self._coming += count
        try:
            yield
        finally:
            self._coming -= count

    def _check_room(self, count: int) -> None:
        live = len(self._live()) + self._coming
        if live + count > self.most:
            raise TooManyBranches(f"{live} of {self.most} branches are open: no room for {count} more; close some")
