"""Position embeddings of models that count positions themselves, changed to take those that `feeding` announces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from agentkv_runtime.hf.attention import current_position

__all__ = ["position_offset", "take_positions"]


def take_positions(model: nn.Module) -> None:
    """Changes the position embeddings of BART and similar models in place, to take positions from `feeding`."""
    for name, module in model.named_modules():
        if name.endswith("embed_positions") and isinstance(module, nn.Embedding):
            module.forward = partial(_rows, module, module.forward)  # type: ignore[method-assign]


def _rows(table: Any, original: Callable[..., torch.Tensor], *args: Any, **options: Any) -> torch.Tensor:
    position = current_position()
    if position is None:
        return original(*args, **options)
    return functional.embedding(position + getattr(table, "offset", 0), table.weight)[None]


def position_offset(model: nn.Module) -> int:
    """Number of a model's first position: 0, or padding_idx + 1 for RoBERTa and similar models."""
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx) + 1  # type: ignore[arg-type]
    return 0
