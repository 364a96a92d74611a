"""Finding the files of a Hugging Face folder that have a model's weights. Imports no torch."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import read_object

__all__ = ["check_index", "weight_files"]

_WHOLE, _INDEX, _OLDER_INDEX = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, chosen as in transformers, since a folder may have others, too.

    Empty if there are none. Raises ExportError for an index that is damaged or names files elsewhere.
    """
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        return []
    return [folder / name for name in _indexed(folder / _INDEX, "*.safetensors")]


def check_index(folder: Path) -> None:
    """Raises ExportError for an index that is damaged or names files elsewhere, which transformers would read."""
    if not weight_files(folder) and (folder / _OLDER_INDEX).is_file():
        _indexed(folder / _OLDER_INDEX, "pytorch_model*.bin")


def _indexed(index: Path, pattern: str) -> list[str]:
    """Names of the files in an index, which must be in its folder and match `pattern`. Raises ExportError."""
    places = read_object(index, ExportError).get("weight_map")
    names = list(places.values()) if isinstance(places, dict) else []
    for name in names:
        if not isinstance(name, str) or {"/", "\0"} & set(name) or not fnmatchcase(name, pattern):
            raise ExportError(
                f"{index}: names {printable(repr(name)[:80])}, which is no {pattern} in its folder. Download the whole "
                "model"
            )
    if not names:
        raise ExportError(f"{index}: names no files. Download the whole model")
    missing = [name for name in sorted(set(names)) if not os.path.lexists(index.parent / name)]
    if missing:
        raise ExportError(
            f"{index}: names {len(missing)} files that are not there, as {printable(missing[0][:80])}. Download the "
            "whole model"
        )
    return sorted(set(names))
