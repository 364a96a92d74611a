"""The journal of a Context, as branches and agents use it. `kv.Journal` is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .branch import Branch
    from .core import ContextCore


class ContextJournal(Protocol):
    """Records turns of agents, and what else changes the branches that have had one."""

    def attach(self, core: ContextCore) -> None:
        """Opens the journal for a Context. Raises JournalError."""

    def detach(self, core: ContextCore) -> None:
        """Closes the journal for a Context."""

    def turn_log(self, core: ContextCore) -> Any:
        """The record of a new turn (`agents.turn_log.TurnLog`)."""

    async def changed(self, branch: Branch) -> None:
        """A branch has adopted another one, or its files were applied."""

    async def saved(self, core: ContextCore, path: Path, tokens: Mapping[str, bytes]) -> None:
        """Branches with these tokens, by name, were saved to a file."""
