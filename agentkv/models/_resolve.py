"""Names of models, made folders: the one place for it."""

from __future__ import annotations

import re
from pathlib import Path

from .._types.errors import ModelError
from . import nano

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(/[\w.-]+(?i:\.gguf))?(@[\w./-]+)?")


def folder_called(path: Path, *, backend: str | None = None, quant: str | None = None) -> Path:
    """The folder or file that a path or a name means: what lies there, a model that was pulled, `nano`, or a file in
    the store of another program.

    A path where nothing is comes back as it is: opening it says so. Raises ModelError for what looks like a name and is
    none, StoreError for a model that was pulled with other options or that another program does not have.
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
    """Why what looks like a name means nothing here; None for a path."""
    from agentkv_runtime.store.catalogue import listed
    from agentkv_runtime.store.names import did_you_mean

    from .._console.console import bytes_text

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
