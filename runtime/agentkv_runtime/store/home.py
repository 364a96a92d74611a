"""Where exported models are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from agentkv_runtime.errors import StoreError

__all__ = ["home", "locked"]


def home() -> Path:
    """`AGENTKV_HOME`, or else `agentkv` in the user's cache folder (`XDG_CACHE_HOME`, or `~/.cache`).

    Raises StoreError for a user without a home folder, as in many containers.
    """
    try:
        if chosen := os.environ.get("AGENTKV_HOME"):
            return Path(chosen).expanduser().absolute()
        caches = os.environ.get("XDG_CACHE_HOME")
        return (Path(caches).absolute() if caches else Path.home() / ".cache") / "agentkv"
    except RuntimeError as error:
        raise StoreError(f"{str(error).rstrip('.')}. Models are kept there; set AGENTKV_HOME to a folder") from error


@contextmanager
def locked(name: str, wait: Callable[[], None]) -> Iterator[None]:
    """Held by one process at a time in the block, and no longer than that one lives.

    `wait` is told where another one holds it. Raises StoreError where nothing can be written.
    """
    folder = home() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            wait()
            lock.acquire()
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder}: {error.strerror or error}. Models are kept there; set AGENTKV_HOME to a "
            "folder that can be written"
        ) from error
    try:
        yield
    finally:
        lock.release()
