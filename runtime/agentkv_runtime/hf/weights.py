"""Where a model's weights come from, one tensor at a time."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.hf.weight_files import weight_files

__all__ = ["FLOATS", "FolderWeights", "Weights", "checked_float"]

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Dtypes whose numbers are the weights themselves."""


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
