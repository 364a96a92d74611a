"""What the files of a model are, by their bytes: what tells one state of a folder from another."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from agentkv_runtime.errors import ExportError
from agentkv_runtime.fresh_file import FreshFile
from agentkv_runtime.small_files import open_regular
from agentkv_runtime.store.home import home

__all__ = ["content_digest", "file_digest"]

_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "pytorch_model*.bin")
_LARGE = 1 << 20  # bytes; the digests of such files are kept


def content_digest(source: Path) -> str:
    """SHA-256, in hexadecimal, of what an export reads of a model: its folder's files, or a GGUF file.

    Raises ExportError for a file that cannot be read.
    """
    files = [source] if source.is_file() else sorted({path for p in _PATTERNS for path in source.glob(p)})
    whole = hashlib.sha256()
    for path in files:
        name = "model.gguf" if path == source else path.name
        whole.update(f"{name} {file_digest(path)}\n".encode())
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file. Large ones are read once, and again when they changed. Raises ExportError."""
    real = Path(os.path.realpath(path))
    with open_regular(real, ExportError) as file:
        status = os.fstat(file.fileno())
        if status.st_size < _LARGE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        state = [status.st_size, status.st_mtime_ns, status.st_ino]
        kept = home() / "digests" / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:32]}.json"
        with suppress(OSError, ValueError, TypeError, KeyError):
            known = json.loads(kept.read_text(encoding="utf-8"))
            if known["state"] == state:
                return str(known["sha256"])
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):  # it is only quicker with it
        kept.parent.mkdir(parents=True, exist_ok=True)
        note = FreshFile(kept)
        note.write(0, json.dumps({"path": str(real), "state": state, "sha256": digest}).encode())
        note.put_in_place()
    return digest
