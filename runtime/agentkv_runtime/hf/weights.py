"""Sources of a model's weights, loaded one tensor at a time."""

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
"""Dtypes of unquantised weights."""


def checked_float(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor. Raises UnsupportedModelError for a dtype of quantised codes."""
    if tensor.dtype not in FLOATS:
        raise UnsupportedModelError(
            f"{name} is stored as {tensor.dtype}: the checkpoint is quantised. Export the model that it was made from"
        )
    return tensor


class Weights(Protocol):
    """The tensors of a model under the names of transformers' parameters."""

    def names(self) -> Collection[str]:
        """Names of all tensors."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """Loads a tensor as stored, or dequantised, without keeping it."""
        ...


class FolderWeights:
    """A `Weights` over a folder's safetensors files, which are mapped while one of their tensors is in use."""

    def __init__(self, folder: Path) -> None:
        """Opens the files. Raises OSError, or SafetensorError for an invalid file."""
        self._files: dict[str, Path] = {}
        for path in weight_files(folder):
            with safe_open(path, framework="pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))

    def names(self) -> Collection[str]:
        """Names of the tensors in all files."""
        return self._files.keys()

    def load(self, name: str) -> torch.Tensor:
        """Loads a tensor in its stored dtype. Raises KeyError for an unknown name."""
        with safe_open(self._files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor
