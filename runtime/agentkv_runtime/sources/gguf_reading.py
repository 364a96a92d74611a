"""GGUF files, opened."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader

from agentkv_runtime.errors import ExportError
from agentkv_runtime.small_files import open_regular
from agentkv_runtime.sources.source import MAGIC

__all__ = ["open_gguf"]


def open_gguf(path: Path) -> GGUFReader:
    """A whole file, mapped. Raises ExportError for one that is no GGUF file, or is cut or damaged."""
    with open_regular(path, ExportError) as file:
        begins = file.read(len(MAGIC))
    if begins != MAGIC:
        what = f"it begins with {begins!r}" if begins else "it is empty"
        raise ExportError(f"{path}: cannot be read as a GGUF file: {what}. Download it again")
    try:
        return GGUFReader(path)
    except Exception as error:  # of numpy and struct, whose words say nothing of files
        raise ExportError(
            f"{path}: cannot be read as a GGUF file: it is cut or damaged: its {path.stat().st_size} bytes do not hold "
            "what it lists. Download it again"
        ) from error
