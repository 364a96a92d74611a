"""Sparse attention that picks tokens by an index (DeepSeek-V3.2, 2025), run as attention to all tokens.

Both are equal up to the number of tokens that the index picks; `position_limit` bounds histories to that. The index is
not computed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from agentkv_runtime.hf.attention import AllInSight, attends_here

__all__ = ["pick_all"]


def _picked(original: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Replaces the index: returns no picks, which agentkv's attention does not use."""
    return hidden_states.new_empty(0) if attends_here() else original(hidden_states, *args, **kwargs)


def _attended(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls attention with a mask from which layers can cut the index's part."""
    if attends_here():
        kwargs["attention_mask"] = AllInSight()
    return original(*args, **kwargs)


def pick_all(model: nn.Module) -> None:
    """Makes a model's layers attend to all tokens when it attends through a cache, in place."""
    for module in model.modules():
        layer: Any = module
        if not hasattr(layer, "indexer") or getattr(getattr(layer, "config", None), "index_topk", None) is None:
            continue
        layer.forward = partial(_attended, layer.forward)
        if layer.indexer is not None:
            layer.indexer.forward = partial(_picked, layer.indexer.forward)
