"""Digests of a model's files, which tell one state of a folder from another."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.fresh_file import put_in_place
from agentkv_runtime.folder.small_files import open_regular
from agentkv_runtime.gguf.parts import part_paths
from agentkv_runtime.store.home import home

__all__ = ["content_digest", "file_digest"]

_PATTERNS = ("*.json", "*.jinja", "additional_chat_templates/*.jinja", "*.safetensors", "pytorch_model*.bin")
_LARGE = 1 << 20  # bytes; the digests of such files are kept


def content_digest(source: Path, *, known: bool = False) -> str | None:
    """SHA-256, in hexadecimal, of the files that an export reads: those of a folder, or the parts of a GGUF file.

    With `known` it reads no large file, and returns None if the digest of one is not cached. Raises
    ExportError for a file that cannot be read.
    """
    whole = hashlib.sha256()
    for name, path in _files(source).items():
        digest = _kept_digest(path) if known else file_digest(path)
        if digest is None:
            return None
        whole.update(f"{name} {digest}\n".encode())
    return whole.hexdigest()


def _files(source: Path) -> dict[str, Path]:
    """Files that an export reads, under names independent of the name of the folder or of the GGUF file."""
    if not source.is_file():
        paths = sorted({path for p in _PATTERNS for path in source.glob(p)})
        return {str(path.relative_to(source)): path for path in paths}
    parts = [part for part in part_paths(source) if part.is_file()]
    return {"model.gguf" if i == 0 else f"model-{i + 1}.gguf": part for i, part in enumerate(parts)}


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Caches those of large files until they change. Raises ExportError."""
    return _kept_digest(path) or _read_digest(path)


def _state(file: BinaryIO) -> list[int]:
    status = os.fstat(file.fileno())
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino]


def _note(real: Path) -> Path:
    return home() / "digests" / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:32]}.json"


def _kept_digest(path: Path) -> str | None:
    """SHA-256 of a small file, or the cached one of a large file that did not change since; otherwise None."""
    real = Path(os.path.realpath(path))
    with open_regular(real, ExportError) as file:
        state = _state(file)
        if state[0] < _LARGE:
            return hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(_note(real).read_text(encoding="utf-8"))
        if known["state"] == state:
            return str(known["sha256"])
    return None


def _read_digest(path: Path) -> str:
    real = Path(os.path.realpath(path))
    with open_regular(real, ExportError) as file:
        state = _state(file)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):  # it is only quicker with it
        _note(real).parent.mkdir(parents=True, exist_ok=True)
        put_in_place(_note(real), json.dumps({"path": str(real), "state": state, "sha256": digest}).encode())
    return digest
