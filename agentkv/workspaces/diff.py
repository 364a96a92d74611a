"""What a branch changed in its files."""

from __future__ import annotations

import difflib
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .._types.show import spellable
from .beneath import in_one_line
from .blobs import BlobStore
from .entries import FileEntry

MOST_BYTES = 1 << 20  # of a file whose lines are compared
_MOST_LINES = 5000  # that are compared on one side; beyond that, all are shown as changed
_MOST_PAIRS = 500_000  # of equal lines, so that comparing takes seconds at most
_Opcode: TypeAlias = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


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
    name = in_one_line(path)
    if old is not None and new is not None and old.kind == new.kind and old.mode != new.mode:
        yield f"diff --git a/{name} b/{name}\nold mode 100{old.mode:o}\nnew mode 100{new.mode:o}\n"
        if old.data == new.data:
            return
    before, after = _lines(old, blobs), _lines(new, blobs)
    if before is None or after is None:
        yield f"Binary files a/{name} and b/{name} differ\n"
        return
    if before == after:  # a file that became a link to what it said
        return
    names = (f"a/{name}" if old else "/dev/null", f"b/{name}" if new else "/dev/null")
    for line in _compared(before, after, *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _compared(before: list[str], after: list[str], old: str, new: str) -> Iterator[str]:
    """A unified diff of lists of lines that are not the same."""
    whole = difflib.SequenceMatcher()
    whole.opcodes = _opcodes(before, after)  # type: ignore[attr-defined]  # where it keeps what it finds
    yield from (f"--- {old}\n", f"+++ {new}\n")
    for hunk in whole.get_grouped_opcodes():
        (_, i1, _, j1, _), (_, _, i2, _, j2) = hunk[0], hunk[-1]
        yield f"@@ -{_range(i1, i2)} +{_range(j1, j2)} @@\n"
        for kind, i1, i2, j1, j2 in hunk:
            yield from (f"{' ' if kind == 'equal' else '-'}{line}" for line in before[i1:i2])
            yield from (f"+{line}" for line in after[j1:j2] if kind != "equal")


def _opcodes(before: list[str], after: list[str]) -> list[_Opcode]:
    """What makes one of the other. What is alike at both ends is not compared, and too much is not, either."""
    start, end, least = 0, 0, min(len(before), len(after))
    while start < least and before[start] == after[start]:
        start += 1
    while end < least - start and before[-1 - end] == after[-1 - end]:
        end += 1
    i_end, j_end = len(before) - end, len(after) - end
    ours, theirs = before[start:i_end], after[start:j_end]
    in_ours = Counter(ours)
    pairs = sum(count * in_ours[line] for line, count in Counter(theirs).items())
    inner: list[_Opcode] = [("replace", 0, len(ours), 0, len(theirs))]
    if max(len(ours), len(theirs)) <= _MOST_LINES and pairs <= _MOST_PAIRS:
        inner = difflib.SequenceMatcher(None, ours, theirs).get_opcodes()
    return [
        ("equal", 0, start, 0, start),
        *((kind, start + i1, start + i2, start + j1, start + j2) for kind, i1, i2, j1, j2 in inner),
        ("equal", i_end, len(before), j_end, len(after)),
    ]


def _range(begin: int, end: int) -> str:
    """Lines of a hunk, as unified diffs write them."""
    count = end - begin
    return f"{begin + 1}" if count == 1 else f"{begin + 1 if count else begin},{count}"


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
