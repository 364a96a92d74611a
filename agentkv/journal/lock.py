"""The lock on a journal, which one process has at a time."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from .._types.errors import JournalError

PROBE_S = 0.5  # `is_locked` of another process has the lock for a moment


def acquired_lock(path: Path) -> FileLock:
    """The lock on a journal, acquired. Raises JournalError if another process has it."""
    lock = FileLock(f"{path}.lock", thread_local=False)
    try:
        lock.acquire(timeout=PROBE_S)
    except Timeout:
        raise JournalError(
            f"the journal {path} is used by another process; end that, or give each process its own"
        ) from None
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be locked: {error}") from error
    return lock


def is_locked(path: Path) -> bool:
    """Whether a process has the lock on a journal."""
    file = Path(f"{path}.lock")
    lock = FileLock(file, thread_local=False)
    try:
        if file.exists():
            lock.acquire(timeout=0)
            lock.release()
    except Timeout:
        return True
    except OSError:  # a lock that this user may not touch
        return False
    return False
