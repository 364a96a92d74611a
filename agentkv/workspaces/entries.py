"""What a folder holds at one moment, as values: entries by path, their differences, and merging them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

Kind = Literal["file", "link", "folder"]


class FileEntry(NamedTuple):
    """A file, a symbolic link or a folder.

    Attributes:
        kind: which of them.
        mode: permission bits; 0 for a link.
        data: digest of a file's content; target of a link; "" for a folder.
        size: bytes of a file, else 0.
        mtime_ns: time of its last change, which a copy gets as well; no part of what it says.
    """

    kind: Kind
    mode: int
    data: str
    size: int = 0
    mtime_ns: int = 0

    def says(self, other: FileEntry | None) -> bool:
        """Whether another entry is the same but for its time."""
        return other is not None and self[:3] == other[:3]


Manifest: TypeAlias = Mapping[str, FileEntry]
"""Entries by path relative to the folder, with "/" between names; a folder's own entries are beside it."""
Changes: TypeAlias = dict[str, FileEntry | None]
"""Entries that are new or another, by path; None for one that is gone."""


def changes_between(old: Manifest, new: Manifest) -> Changes:
    """What has to change in `old` so that it says what `new` says."""
    changed: Changes = {
        path: entry
        for path, entry in new.items()
        if (was := old.get(path)) is not entry and not entry.says(was)  # most were not looked at anew
    }
    changed.update((path, None) for path in old if path not in new)
    return changed


def changed(old: Manifest, changes: Mapping[str, FileEntry | None]) -> dict[str, FileEntry]:
    """A manifest with changes made."""
    made = dict(old)
    change(made, changes)
    return made


def change(entries: dict[str, FileEntry], changes: Mapping[str, FileEntry | None]) -> None:
    """Makes changes in a manifest."""
    for path, entry in changes.items():
        if entry is None:
            entries.pop(path, None)
        else:
            entries[path] = entry


def merged(base: Manifest, ours: Manifest, theirs: Manifest) -> tuple[dict[str, FileEntry], list[str]]:
    """Both sides' changes since `base`, and the paths that both changed and not alike."""
    our_changes, their_changes = changes_between(base, ours), changes_between(base, theirs)
    conflicts = {
        path
        for path, entry in their_changes.items()
        if path in our_changes and not _alike(our_changes[path], entry) and not _are_folders(our_changes[path], entry)
    }
    made = changed(ours, {path: entry for path, entry in their_changes.items() if path not in conflicts})
    for path in list(made):
        for parent in parents_of(path):
            found = made.get(parent) or ours.get(parent) or theirs.get(parent)
            if found is None or found.kind != "folder":
                conflicts |= {path, parent}  # a file of one side stands where the other has a folder
            else:
                made.setdefault(parent, found)  # deleted on one side, with something new in it on the other
    return made, sorted(conflicts)


def parents_of(path: str) -> Iterator[str]:
    """Paths of the folders that a path is in, the nearest one first."""
    parent, _, _ = path.rpartition("/")
    while parent:
        yield parent
        parent, _, _ = parent.rpartition("/")


def _alike(one: FileEntry | None, other: FileEntry | None) -> bool:
    return one is other if one is None else one.says(other)


def _are_folders(one: FileEntry | None, other: FileEntry | None) -> bool:
    """Whether two sides differ in a folder's permissions at most: the second one's count."""
    return one is not None and other is not None and one.kind == other.kind == "folder"
