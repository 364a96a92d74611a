"""Resolves names of models to folders or files."""

from __future__ import annotations

import re
from pathlib import Path

from .._types.errors import ModelError
from . import nano

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(/[\w.-]+(?i:\.gguf))?(@[\w./-]+)?")


def folder_called(path: Path, *, backend: str | None = None, quant: str | None = None) -> Path:
    """Resolves a path or name to a folder or file: an existing path, a pulled model, `nano`, or a file in another
    program's store.

    A path that does not exist is returned unchanged: opening it reports that. Raises ModelError for an unknown name,
    StoreError for a model that was pulled with other options or that another program does not have.
    """
    from agentkv_runtime.store.entries import find
    from agentkv_runtime.store.names import canonical, file_called

    if path.exists():
        return path
    name = canonical(str(path))
    entry = find(name, backend=backend, quant=quant)
    if entry is not None:
        entry.touch()
        return entry.path
    if name == "nano":
        return nano()
    file = file_called(name)
    if file is not None:
        return file
    if (why := _refusal(name)) is not None:
        raise ModelError(why)
    return path


def _refusal(name: str) -> str | None:
    """Error message for an unknown name; None for a path."""
    from agentkv_runtime.store.catalogue import listed
    from agentkv_runtime.store.names import did_you_mean

    from .._types.show import bytes_text

    known = listed(name.partition("@")[0])
    if known is not None:
        return f"{name} is not here yet: agentkv pull {name} ({bytes_text(known.size)}, licence: {known.licence})"
    if HUB_NAME.fullmatch(name):
        return (
            f"{name}: no such folder or file, and no model that was pulled. If it is one on the Hugging Face hub: "
            f"agentkv pull {name}"
        )
    if "/" in name or name.lower().endswith(".gguf"):
        return None
    return (
        f"{name}: no such folder or file, no model that was pulled, and no short name. {did_you_mean(name)}, "
        "`agentkv list` what is here, `agentkv pull OWNER/MODEL` gets one, `nano` is always there; or give a folder "
        "that `agentkv export` wrote"
    )
