"""Cached fingerprints of files that are unchanged since they were read, so that opening a model need not read it whole.

The cache is in the user's cache folder and not beside the file: files that come with a folder prove nothing about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from agentkv_runtime.errors import StoreError
from agentkv_runtime.store.home import home

__all__ = ["remember_fingerprint", "remembered_fingerprint"]

_SETTLED_NS = 2_000_000_000
"""Nanoseconds within which a changed file may change again without another time stamp; git assumes the same."""


def remembered_fingerprint(path: Path, read: Callable[[Path], str]) -> str:
    """The fingerprint of the file at `path`: the cached one if the file is unchanged, or else that of `read`."""
    state = _state(path)
    note = _note(path)
    if state is None or note is None:
        return read(path)
    known = _read(note)
    if known is not None and known[0] == state:
        return known[1]
    fingerprint = read(path)
    if _state(path) == state and state[-1] + _SETTLED_NS < time.time_ns():
        _write(note, state, fingerprint)
    return fingerprint


def remember_fingerprint(path: Path, fingerprint: str) -> None:
    """Caches the fingerprint of a file that this process wrote where no other process writes."""
    state, note = _state(path), _note(path)
    if state is not None and note is not None:
        _write(note, state, fingerprint)


def _state(path: Path) -> list[int] | None:
    """Identity, size and change times of a file, of which only the system can set the last; None if unreadable."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _note(path: Path) -> Path | None:
    try:
        return home() / "verified" / hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    except StoreError:
        return None


def _read(note: Path) -> tuple[list[int], str] | None:
    try:
        with note.open("rb") as file:
            known = json.loads(file.read(4096))
        return list(known["state"]), str(known["fingerprint"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _write(note: Path, state: list[int], fingerprint: str) -> None:
    """Writes a cache entry atomically; ignores errors, which only cost another read of the file."""
    made = note.with_name(f"{note.name}.{os.getpid()}.unfinished")
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(json.dumps({"state": state, "fingerprint": fingerprint}))
        os.replace(made, note)
    with contextlib.suppress(OSError):
        made.unlink(missing_ok=True)
