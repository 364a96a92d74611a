"""Where a model's weights come from, one tensor at a time."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open

__all__ = ["FolderWeights", "Weights"]


class Weights(Protocol):
    """The tensors of a model under the names of transformers' parameters."""

    def names(self) -> Collection[str]:
        """All names that `load` knows."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """One tensor, as it is stored (or dequantised). Nothing of it is kept."""
        ...


class FolderWeights:
    """The `*.safetensors` files of a folder, mapped while a tensor of theirs is in use."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or safetensors' error for a file that is none."""
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
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
