"""Finished conversations, which wait on their branches to be gone on with."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._errors import AgentKVError
from .._log import log

if TYPE_CHECKING:
    from .._branch import Branch


@dataclass(slots=True)
class Kept:
    """A branch that waits.

    Attributes:
        branch: it.
        promised: was its client told that it will be there?
        note: what its protocol has to know of it.
    """

    branch: Branch
    promised: bool
    note: object = None


class Shelf:
    """Idle branches by name. Beyond `most` one is closed: of those that nobody was promised the one used longest ago,
    else of all. Where the cache lacks room, those used longest ago give up their cells first: what was promised to be
    there goes to a folder or to memory until it is asked for again, anything else is closed, and left to what the cache
    retains."""

    def __init__(self, most: int, folder: Path | None = None) -> None:
        self._most = most
        self._folder = folder
        self._kept: OrderedDict[str, Kept] = OrderedDict()  # used longest ago first

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, name: str, branch: Branch, *, promised: bool, note: object = None) -> None:
        """Keeps a branch; one that had the name before is closed."""
        self.drop(name)
        self._kept[name] = Kept(branch, promised, note)
        while len(self._kept) > self._most:
            self.close_oldest()

    def find(self, name: str) -> Branch | None:
        """The branch of that name, which stays: it is forked."""
        kept = self.kept(name)
        return None if kept is None else kept.branch

    def kept(self, name: str) -> Kept | None:
        """The same, with what is known of it."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        if kept.branch.closed:
            self.drop(name)
            return None
        self._kept.move_to_end(name)
        return kept

    def drop(self, name: str) -> bool:
        """Closes the branch of that name. Was there one?"""
        kept = self._kept.pop(name, None)
        if kept is None:
            return False
        kept.branch.close()
        return True

    async def make_room(self) -> bool:
        """Frees cells of the branch used longest ago that has some of its own. Was there one?"""
        failed = False
        for name, kept in list(self._kept.items()):
            branch = kept.branch
            if branch.closed or branch.offloaded:
                continue
            if not kept.promised:
                return self.drop(name)
            try:
                freed = await branch.offload(self._folder)
            except AgentKVError as error:  # a full disk, or it is just being forked
                log.warning("a kept conversation could not be offloaded", branch=branch.id, error=str(error))
                failed = True
                continue
            if freed:
                return True
        return failed and self.close_oldest()  # what cannot be kept elsewhere must not shut out everybody

    def close_oldest(self) -> bool:
        """Forgets a conversation, rather one that nobody was promised. Was there one?"""
        name = next((name for name, kept in self._kept.items() if not kept.promised), next(iter(self._kept), None))
        return name is not None and self.drop(name)
