"""What a branch changed in its files."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .._types.show import spellable
from .blobs import BlobStore
from .entries import FileEntry

MOST_BYTES = 1 << 20  # of a file whose lines are compared


@dataclass(frozen=True, slots=True)
class WorkspaceDiff:
    """What a branch changed in its files since it began. Paths are relative to the workspace's folder.

    Attributes:
        added: files and links that were not there.
        modified: those with another content, target or permissions.
        deleted: those that are gone.
        text: the changes of text files, as a unified diff.
    """

    added: tuple[str, ...]
    modified: tuple[str, ...]
    deleted: tuple[str, ...]
    text: str = field(repr=False)

    @property
    def paths(self) -> list[str]:
        """All paths, in order."""
        return sorted((*self.added, *self.modified, *self.deleted))

    def __bool__(self) -> bool:
        return bool(self.added or self.modified or self.deleted)

    def __str__(self) -> str:
        return self.text


def difference(old: Mapping[str, FileEntry], new: Mapping[str, FileEntry], blobs: BlobStore) -> WorkspaceDiff:
    """The difference of two manifests; folders are left out."""
    before = {path: entry for path, entry in old.items() if entry.kind != "folder"}
    after = {path: entry for path, entry in new.items() if entry.kind != "folder"}
    modified = [path for path, entry in after.items() if path in before and not entry.says(before[path])]
    added, deleted = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    paths = sorted([*modified, *added, *deleted])
    text = "".join("".join(_of_file(path, before.get(path), after.get(path), blobs)) for path in paths)
    return WorkspaceDiff(tuple(added), tuple(sorted(modified)), tuple(deleted), text)


def _of_file(path: str, old: FileEntry | None, new: FileEntry | None, blobs: BlobStore) -> Iterator[str]:
    name = spellable(path)
    before, after = _lines(old, blobs), _lines(new, blobs)
    if before is None or after is None:
        yield f"Binary files a/{name} and b/{name} differ\n"
        return
    if old is not None and new is not None and old.mode != new.mode:
        yield f"old mode {old.mode:o}\nnew mode {new.mode:o}\n"
    names = (f"a/{name}" if old else "/dev/null", f"b/{name}" if new else "/dev/null")
    for line in difflib.unified_diff(before, after, *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(entry: FileEntry | None, blobs: BlobStore) -> list[str] | None:
    """Lines of a text file, or what a link points to; None for a file that is no text, or long."""
    if entry is None:
        return []
    if entry.kind == "link":
        return [spellable(entry.data)]
    if entry.size > MOST_BYTES:
        return None
    content = blobs.path(entry.data).read_bytes()
    try:
        return None if b"\0" in content else list(io.StringIO(content.decode(), newline="\n"))
    except UnicodeDecodeError:
        return None
