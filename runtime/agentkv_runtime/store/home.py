"""The folder of the store, and its locks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from agentkv_runtime.errors import StoreError

__all__ = ["home", "locked"]


def home() -> Path:
    """The store's folder: `AGENTKV_HOME`, or `agentkv` in the user's cache folder (`XDG_CACHE_HOME` or `~/.cache`).

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
    """Holds the lock `name`, which one process at a time can hold, in the block.

    Calls `wait` before waiting for another process. A process that dies loses its locks. Raises StoreError if nothing
    can be written.
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
