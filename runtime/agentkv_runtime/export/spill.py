"""Spilling of a program's large parts to files until it is written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from executorch.exir._serialize._cord import CordBuffer, FileBackedData

__all__ = ["spilled", "spilling_to"]

_SMALL = 1 << 16  # bytes that are not worth a file

_folder: ContextVar[Path | None] = ContextVar("agentkv_spill_folder", default=None)


@contextmanager
def spilling_to(parent: Path) -> Iterator[None]:
    """Makes `spilled` write to a temporary folder inside `parent` in the block.

    A program that is lowered in the block must be written in it.
    """
    with tempfile.TemporaryDirectory(dir=parent, prefix="spilled-", ignore_cleanup_errors=True) as folder:
        token = _folder.set(Path(folder))
        try:
            yield
        finally:
            _folder.reset(token)


def spilled(data: CordBuffer) -> CordBuffer:
    """The same bytes, moved to a file if they are large and `spilling_to` is active. Raises OSError on a full disk."""
    folder = _folder.get()
    if folder is None or not isinstance(data, bytes) or len(data) < _SMALL:
        return data
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(data)
    return FileBackedData(file.name)
