"""Finished conversations, which wait on their branches to be gone on with."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from .._errors import AgentKVError
from .._log import log

if TYPE_CHECKING:
    from .._branch import Branch


class Shelf:
    """Idle branches by name. Beyond `most` the one used longest ago is closed. Where the cache lacks room, those used
    longest ago give up their cells first: what was promised to be there goes to a folder or to memory until it is asked
    for again, anything else is closed, and left to what the cache retains."""

    def __init__(self, most: int, folder: Path | None = None) -> None:
        self._most = most
        self._folder = folder
        self._branches: OrderedDict[str, Branch] = OrderedDict()  # used longest ago first
        self._promised: set[str] = set()

    def __len__(self) -> int:
        return len(self._branches)

    def put(self, name: str, branch: Branch, *, promised: bool) -> None:
        """Keeps a branch; one that had the name before is closed."""
        self.drop(name)
        self._branches[name] = branch
        if promised:
            self._promised.add(name)
        while len(self._branches) > self._most:
            self.close_oldest()

    def find(self, name: str) -> Branch | None:
        """The branch of that name, which stays: it is forked."""
        branch = self._branches.get(name)
        if branch is None:
            return None
        if branch.closed:
            self.drop(name)
            return None
        self._branches.move_to_end(name)
        return branch

    def drop(self, name: str) -> bool:
        """Closes the branch of that name. Was there one?"""
        branch = self._branches.pop(name, None)
        self._promised.discard(name)
        if branch is None:
            return False
        branch.close()
        return True

    async def make_room(self) -> bool:
        """Frees cells of the branch used longest ago that has some of its own. Was there one?"""
        for name, branch in list(self._branches.items()):
            if branch.closed or branch.offloaded:
                continue
            if name not in self._promised:
                return self.drop(name)
            try:
                freed = await branch.offload(self._folder)
            except AgentKVError as error:  # a full disk, or it is just being forked
                log.warning("a kept conversation could not be offloaded", branch=branch.id, error=str(error))
                continue
            if freed:
                return True
        return False

    def close_oldest(self) -> bool:
        """Forgets the conversation used longest ago. Was there one?"""
        return bool(self._branches) and self.drop(next(iter(self._branches)))
