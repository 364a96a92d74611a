"""Bringing the changes of two sides together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .entries import Changes, FileEntry, changed, changes_between, merged, parents_of
from .tree import conflict
from .version import Version, merge_base


@dataclass(frozen=True, slots=True)
class State:
    """Files of one side.

    Attributes:
        version: their version.
        entries: what that says.
    """

    version: Version
    entries: Mapping[str, FileEntry]


@dataclass(frozen=True, slots=True)
class Merge:
    """Files with the changes of two sides.

    Attributes:
        version: the version with both.
        entries: what that says.
        changes: what the second side changes in the first.
        ours: files of the first side.
    """

    version: Version
    entries: dict[str, FileEntry]
    changes: Changes
    ours: Mapping[str, FileEntry]

    @classmethod
    def of(cls, ours: State, theirs: State, otherwise: Version, why: str) -> Merge:
        """Merges `theirs` into `ours`, by the last version that both come from, or `otherwise`.

        Raises WorkspaceConflict, which says `why`.
        """
        base = merge_base(ours.version, theirs.version) or otherwise
        entries, conflicts = merged(base.manifest(), ours.entries, theirs.entries)
        if conflicts:
            raise conflict(conflicts, why)
        changes = changes_between(ours.entries, entries)
        return cls(Version(changes, ours.version, theirs.version), entries, changes, ours.entries)

    def on(self, now: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
        """The merge with what the first side changed since: that is later, and stays."""
        late = changes_between(self.ours, now)
        wanted = changed(now, {path: entry for path, entry in self.changes.items() if path not in late})
        for path in [path for path in self.changes if path in wanted]:
            for parent in parents_of(path):
                if parent not in wanted or wanted[parent].kind != "folder":
                    wanted[parent] = self.entries[parent]
        return wanted
