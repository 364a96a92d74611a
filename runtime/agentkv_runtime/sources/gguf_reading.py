"""GGUF files with their tensors."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader

from agentkv_runtime.errors import ExportError

__all__ = ["open_gguf"]


def open_gguf(path: Path) -> GGUFReader:
    """A whole file, mapped. Raises ExportError for one that is cut or damaged."""
    try:
        return GGUFReader(path)
    except Exception as error:  # of numpy and struct, whose words say nothing of files
        raise ExportError(
            f"{path}: cannot be read as a GGUF file: it is cut or damaged: its {path.stat().st_size} bytes do not hold "
            "what it lists. Download it again"
        ) from error
