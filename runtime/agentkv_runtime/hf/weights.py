"""Where the weights of a model come from, one tensor at a time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch

__all__ = ["Weights"]


class Weights(Protocol):
    """The weights of one model by the names that their parameters have in transformers."""

    def names(self) -> Collection[str]:
        """Of all tensors that there are."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """One of them, as it is stored, or dequantised."""
        ...
