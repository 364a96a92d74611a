"""Locks on open files and folders, by which processes see what others are still writing. A lock ends with the process
that holds it. Windows has none."""

from __future__ import annotations

import errno

__all__ = ["HAS_LOCKS", "check_locks", "lock"]

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
"""Whether the system has such locks."""


def check_locks() -> None:
    """Raises OSError on a system without such locks. Whoever writes under a lock asks before anything is changed."""
    if not HAS_LOCKS:
        raise OSError(
            errno.ENOTSUP, "this system has no locks on open files and folders (flock); use Linux, macOS or WSL"
        )


def lock(descriptor: int, *, wait: bool) -> None:
    """Locks an open file or folder until it is closed.

    Raises BlockingIOError if another process has locked it, unless `wait`, and OSError where there are no locks.
    """
    check_locks()
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
