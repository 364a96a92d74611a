"""Reading, writing and searching files beneath a folder, in bounded amounts. Nothing outside of it is touched."""

from __future__ import annotations

import heapq
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import regex

from .._types.errors import WorkspaceError
from .._types.show import preview, spellable
from .beneath import (
    NOTHING_THERE,
    Place,
    beneath,
    in_one_line,
    open_file,
    open_folder,
    replaced,
    shown,
    unusable,
    what_is,
)
from .blobs import write_all

MOST_READ = 1 << 20  # bytes of a file
MOST_LISTED = 1000  # names of one answer
MOST_FOUND = 100  # lines of one answer
MOST_SEARCHED = 20_000  # files of one search
_LINE = 300  # characters of a line that is shown
_LINE_S = 1.0  # of a pattern on one line: some take for ever
_SEARCH_S = 20.0  # of one search
_MOST_PATTERN = 2000  # characters: long ones take long to compile
_CALLS_ITSELF = re.compile(r"(?<!\\)\(\?(?:R|[+-]?\d|&|P>)")  # until memory is full
_DEEPEST = 40  # folders within each other that are searched


def read_text(folder: Path, path: str) -> str:
    """The text of a file. Raises WorkspaceError, OutsideWorkspace."""
    with _at(folder, path) as (_, place):
        return _text(place)


def write_text(folder: Path, path: str, text: str) -> bool:
    """Writes a file, and makes the folders on the way to it; returns whether the file is new.

    Raises WorkspaceError, OutsideWorkspace.
    """
    with _at(folder, path, make=True) as (_, place):
        found = place.stat()
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise WorkspaceError(f"{shown(path)} is {what_is(found.st_mode)}; write to another path")
        mode = 0o644 if found is None else stat.S_IMODE(found.st_mode) & 0o777
        with replaced(place.name, place.folder, mode) as file:
            write_all(file, text.encode("utf-8", "replace"))
        return found is None


def edit_text(folder: Path, path: str, old: str, new: str) -> int:
    """Replaces the one place where a file holds `old`; returns the line where that begins.

    Raises WorkspaceError where there is none, or more than one; OutsideWorkspace.
    """
    if not old:
        raise WorkspaceError("the old text is empty; give the text to replace, as the file has it")
    with _at(folder, path) as (_, place):
        text = _text(place)
        count = text.count(old)
        if count != 1:
            why = "holds it nowhere; read the file, and copy the old text from it" if count == 0 else (
                f"holds it {count} times; pass more of what is around it"
            )  # fmt: skip
            raise WorkspaceError(f"{shown(path)} {why}")
        mode = stat.S_IMODE(os.stat(place.name, dir_fd=place.folder, follow_symlinks=False).st_mode) & 0o777
        with replaced(place.name, place.folder, mode) as file:
            write_all(file, text.replace(old, spellable(new)).encode("utf-8", "surrogateescape"))
        return text[: text.index(old)].count("\n") + 1


def list_folder(folder: Path, path: str) -> list[str]:
    """Names in a folder, those of folders with "/" behind. Raises WorkspaceError, OutsideWorkspace."""
    with _at(folder, path) as (_, place):
        within = _opened(place, path)
        try:
            count = len(os.listdir(within))
            with os.scandir(within) as names:
                found = (each.name + "/" * each.is_dir(follow_symlinks=False) for each in names)
                first = heapq.nsmallest(MOST_LISTED, found)
        finally:
            os.close(within)
    more = count - len(first)
    return [in_one_line(name) for name in first] + ([f"... and {more} more"] if more > 0 else [])


def search_text(folder: Path, pattern: str, path: str) -> list[str]:
    """Lines that match a regular expression, as "path:line: text", in the files beneath a folder, or in one file.

    Raises WorkspaceError, OutsideWorkspace.
    """
    wanted, until = _compiled(pattern), time.monotonic() + _SEARCH_S
    lines: list[str] = []
    with _at(folder, path) as (_, place):
        for found, file in _files(place, path):
            for number, line in _matching(file, wanted, until):
                lines.append(f"{in_one_line(found)}:{number}: {spellable(line[:_LINE])}")
                if len(lines) == MOST_FOUND:
                    return [*lines, f"... only the first {MOST_FOUND} lines are shown"]
    return lines


def _compiled(pattern: str) -> regex.Pattern[str]:
    if len(pattern) > _MOST_PATTERN or _CALLS_ITSELF.search(pattern):
        raise WorkspaceError(f"{preview(pattern)} calls itself, or is long; search for something simpler")
    try:
        return regex.compile(pattern)
    except (regex.error, ValueError, RecursionError, OverflowError) as error:
        raise WorkspaceError(f"{preview(pattern)} is no regular expression: {error}") from error


@contextmanager
def _at(folder: Path, path: str, *, make: bool = False) -> Iterator[tuple[int, Place]]:
    """The place of a path beneath a folder; errors of the system are told by it. A path may be spelled out from the
    root on, as tracebacks have it."""
    path = path.removeprefix(f"{folder}/") or "."
    root = open_folder(folder)
    try:
        with beneath(root, path, make=make) as place:
            yield root, place
    except OSError as error:
        raise unusable(path, error) from error
    finally:
        os.close(root)


def _opened(place: Place, path: str) -> int:
    found = place.stat()
    if found is not None and not stat.S_ISDIR(found.st_mode):
        raise WorkspaceError(f"{shown(path)} is {what_is(found.st_mode)}, and no folder")
    return open_folder(place.name, place.folder)


def _text(place: Place) -> str:
    file = open_file(place.name, place.folder)
    try:
        found = os.fstat(file)
        if found.st_size > MOST_READ:
            raise WorkspaceError(
                f"{place.path!r} has {found.st_size:,} bytes, and {MOST_READ:,} are read at most; search it, or have a "
                "command print the part that is needed"
            )
        if found.st_nlink > 1:  # looking for the others would take until they are elsewhere
            raise WorkspaceError(
                f"{place.path!r} has other names, which may be outside of the workspace; have a command copy it first"
            )
        content = _bytes(file)
    finally:
        os.close(file)
    if b"\0" in content:
        raise WorkspaceError(f"{place.path!r} is no text: it holds zero bytes")
    return content.decode("utf-8", "surrogateescape")


def _bytes(file: int) -> bytes:
    """The first bytes of a file, at most `MOST_READ`."""
    parts, left = [], MOST_READ
    while left and (part := os.read(file, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _files(place: Place, path: str) -> Iterator[tuple[str, int]]:
    """Plain files at a place and beneath it, open; without hidden folders, links, and files with other names."""
    found = place.stat()
    if found is None:
        raise WorkspaceError(f"{shown(path)}: {NOTHING_THERE}")
    left = [MOST_SEARCHED]
    if not stat.S_ISDIR(found.st_mode):
        yield from _one_file(place.name, place.folder, place.path, left)
        return
    within = open_folder(place.name, place.folder)
    try:
        yield from _beneath(within, place.path, left, 0)
    finally:
        os.close(within)


def _beneath(folder: int, path: str, left: list[int], depth: int) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as names:
        found = sorted((each.name, each.is_dir(follow_symlinks=False)) for each in names)
    for name, is_folder in found:
        below = f"{path}/{name}" if path else name
        if not is_folder:
            yield from _one_file(name, folder, below, left)
        elif not name.startswith(".") and depth < _DEEPEST:
            with suppress(OSError):
                within = open_folder(name, folder)
                try:
                    yield from _beneath(within, below, left, depth + 1)
                finally:
                    os.close(within)


def _one_file(name: str, folder: int, path: str, left: list[int]) -> Iterator[tuple[str, int]]:
    if left[0] == 0:
        raise WorkspaceError(f"there are more than {MOST_SEARCHED:,} files; search in one of the folders")
    left[0] -= 1
    try:
        file = open_file(name, folder)
    except (OSError, WorkspaceError):
        return
    try:
        if os.fstat(file).st_nlink == 1:
            yield path, file
    finally:
        os.close(file)


def _matching(file: int, wanted: regex.Pattern[str], until: float) -> Iterator[tuple[int, str]]:
    content = _bytes(file)
    if b"\0" in content:
        return
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        left = min(_LINE_S, until - time.monotonic())
        try:
            if left <= 0:
                raise TimeoutError
            if wanted.search(line, timeout=left):
                yield number, line
        except TimeoutError as error:
            raise WorkspaceError(
                f"the pattern takes too long, the last line had {len(line)} characters; simplify it, or search "
                "in fewer files"
            ) from error
