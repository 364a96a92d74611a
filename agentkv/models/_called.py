"""Names of models, made folders: the one place for it."""

from __future__ import annotations

import re
from pathlib import Path

from .._errors import ModelError
from . import nano

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(/[\w.-]+(?i:\.gguf))?(@[\w./-]+)?")


def folder_called(path: Path, *, backend: str | None = None, quant: str | None = None) -> Path:
    """The folder or file that a path or a name means: what lies there, a model that was pulled, or `nano`.

    A path where nothing is comes back as it is: opening it says so. Raises ModelError for what looks like a name and is
    none, StoreError for a model that was pulled with other options.
    """
    from agentkv_runtime.store.entries import find

    if path.exists():
        return path
    name = str(path)
    entry = find(name, backend=backend, quant=quant)
    if entry is not None:
        entry.touch()
        return entry.path
    if name == "nano":
        return nano()
    if HUB_NAME.fullmatch(name):
        raise ModelError(
            f"{name}: no such folder, and no model that was pulled. If it is one on the Hugging Face hub: "
            f"agentkv pull {name}"
        )
    if len(path.parts) == 1:
        raise ModelError(
            f"{name}: no such folder, and no model that was pulled. `agentkv list` shows those that were, "
            "`agentkv pull OWNER/MODEL` gets one, `nano` is always there; or give a folder that `agentkv export` wrote"
        )
    return path
