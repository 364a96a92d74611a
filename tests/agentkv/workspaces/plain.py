"""Plain copies of folders, and what is to become of them: an oracle that knows no digests, stamps or differences."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path

Files = dict[str, tuple[str, int, bytes]]
"""Kind, permissions and content by path: a whole copy."""

_numbers = count()


def copy_of(folder: Path) -> Files:
    """All that a folder holds."""
    files: Files = {}
    for at, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(at, name)
            found = path.lstat()
            mode = stat.S_IMODE(found.st_mode)
            key = str(path.relative_to(folder))
            if stat.S_ISLNK(found.st_mode):
                files[key] = ("link", 0, os.readlink(path).encode())
            elif stat.S_ISDIR(found.st_mode):
                files[key] = ("folder", mode, b"")
            elif stat.S_ISREG(found.st_mode):
                files[key] = ("file", mode, path.read_bytes())
    return files


class Node:
    """A whole copy at one moment, and those that it comes from."""

    def __init__(self, files: Files, *parents: Node) -> None:
        self.files = dict(files)
        self.parents = parents
        self.number = next(_numbers)

    def ancestors(self) -> set[Node]:
        """It and all that it comes from."""
        found, left = {self}, [self]
        while left:
            for parent in left.pop().parents:
                if parent not in found:
                    found.add(parent)
                    left.append(parent)
        return found


def base_of(one: Node, other: Node) -> Node:
    """The latest that both come from."""
    return max(one.ancestors() & other.ancestors(), key=lambda node: node.number)


def merge_of(base: Files, ours: Files, theirs: Files) -> tuple[Files, set[str]]:
    """What two sides made of a base, and the paths that they made different things of."""
    merged: Files = {}
    conflicts: set[str] = set()
    for path in {*base, *ours, *theirs}:
        was, here, there = base.get(path), ours.get(path), theirs.get(path)
        chosen = there if here == was else here
        if here != was and there != was and here != there:
            if here and there and here[0] == there[0] == "folder":
                chosen = there
            else:
                conflicts.add(path)
        if chosen is not None:
            merged[path] = chosen
    for path in sorted(merged):
        for parent in _parents(path):
            found = merged.get(parent) or ours.get(parent) or theirs.get(parent)
            if found is None or found[0] != "folder":
                conflicts |= {path, parent}
            else:
                merged.setdefault(parent, found)
    return merged, conflicts


def _parents(path: str) -> Iterator[str]:
    for parent in list(Path(path).parents)[:-1]:
        yield str(parent)


NAMES = ("a", "b", "c d", "ü\udc80")


def _is_folder(path: Path) -> bool:
    """Whether there is a folder, or may be."""
    return not path.is_symlink() and (path.is_dir() or not path.exists())


def edit(folder: Path, rng: random.Random) -> None:
    """Changes something in a folder, as programs do: in place, by another file, by links, by removing."""
    path = folder.joinpath(*(rng.choice(NAMES) for _ in range(rng.choice((1, 1, 2, 3)))))
    if not all(_is_folder(folder / parent) for parent in _parents(str(path.relative_to(folder)))):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    is_folder, is_link = path.is_dir() and not path.is_symlink(), path.is_symlink()
    match rng.choice(("write", "write", "in place", "in place", "remove", "link", "mode", "folder", "move")):
        case "write" if not is_folder:
            path.unlink(missing_ok=True)
            path.write_bytes(rng.randbytes(rng.choice((0, 1, 3, 3, 3, 2000))))
        case "in place" if path.is_file() and not is_link:
            with path.open("r+b") as file:  # of the same size, which only its time tells
                file.write(rng.randbytes(min(3, path.stat().st_size)))
        case "remove" if is_folder:
            shutil.rmtree(path)
        case "remove":
            path.unlink(missing_ok=True)
        case "link" if not is_folder:
            path.unlink(missing_ok=True)
            path.symlink_to(rng.choice(("a", "../a", "/etc/passwd", "nowhere")))
        case "mode" if path.exists() and not is_link:
            path.chmod(rng.choice((0o755, 0o700) if is_folder else (0o644, 0o600, 0o755)))
        case "folder" if not path.exists() and not is_link:
            path.mkdir()
        case "move" if path.exists() and not is_link:
            target = folder / rng.choice(NAMES)
            if not target.exists() and not target.is_symlink() and target not in path.parents and target != path:
                path.rename(target)
