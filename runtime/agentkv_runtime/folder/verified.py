"""Fingerprints of files that were read before and not touched since, so that opening a model need not read it whole.

Kept in the user's cache folder and not beside the file: what comes with a folder proves nothing about it.
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
"""A file that changed within so many nanoseconds may change again without another time stamp, as git has it too."""


def remembered_fingerprint(path: Path, read: Callable[[Path], str]) -> str:
    """The fingerprint of the file at `path`: what `read` gave for it before, where nothing touched the file since."""
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
    """Notes the fingerprint of a file that this process wrote, in a place where nobody else writes."""
    state, note = _state(path), _note(path)
    if state is not None and note is not None:
        _write(note, state, fingerprint)


def _state(path: Path) -> list[int] | None:
    """Which file it is and when anything of it changed last, which nobody but the system can set."""
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
    """Whole or not at all; a folder that cannot be written costs a look at the file next time."""
    made = note.with_name(f"{note.name}.{os.getpid()}.unfinished")
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(json.dumps({"state": state, "fingerprint": fingerprint}))
        os.replace(made, note)
    with contextlib.suppress(OSError):
        made.unlink(missing_ok=True)
