"""Where a model's weights come from, one tensor at a time."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.small_files import read_object

__all__ = ["FLOATS", "FolderWeights", "Weights", "check_index", "checked_float", "weight_files"]

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Dtypes whose numbers are the weights themselves."""

_WHOLE, _INDEX, _OLDER_INDEX = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, as transformers picks them: other ones may lie in its folder, too.

    Empty where there are none. Raises ExportError for an index that is damaged or names files elsewhere.
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
    """The files that an index names, all beside it and called as `content_digest` expects them."""
    places = read_object(index, ExportError).get("weight_map")
    names = list(places.values()) if isinstance(places, dict) else []
    for name in names:
        if not isinstance(name, str) or "/" in name or not fnmatchcase(name, pattern):
            raise ExportError(f"{index}: names {name!r}, which is no {pattern} in its folder. Download the whole model")
    if not names:
        raise ExportError(f"{index}: names no files. Download the whole model")
    return sorted(set(names))


def checked_float(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor. Raises UnsupportedModelError for codes whose scales lie elsewhere."""
    if tensor.dtype not in FLOATS:
        raise UnsupportedModelError(
            f"{name} is stored as {tensor.dtype}: the checkpoint is quantised. Export the model that it was made from"
        )
    return tensor


class Weights(Protocol):
    """The tensors of a model under the names of transformers' parameters."""

    def names(self) -> Collection[str]:
        """All names that `load` knows."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """One tensor, as it is stored (or dequantised). Nothing of it is kept."""
        ...


class FolderWeights:
    """The safetensors files of a folder, mapped while a tensor of theirs is in use."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or safetensors' error for a file that is none."""
        self._files: dict[str, Path] = {}
        for path in weight_files(folder):
            with safe_open(path, framework="pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))

    def names(self) -> Collection[str]:
        """The names in all files."""
        return self._files.keys()

    def load(self, name: str) -> torch.Tensor:
        """The tensor in the dtype of its file. Raises KeyError for a name that is in none."""
        with safe_open(self._files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor
