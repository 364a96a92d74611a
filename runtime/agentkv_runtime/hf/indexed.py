"""Sparse attention that picks tokens by an index (DeepSeek-V3.2, 2025): up to as many tokens as the index picks, it is
attention to all of them, and so far such models run here.

What the index would pick is left out. `position_limit` ends histories where it would pick some and not all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from agentkv_runtime.hf.attention import AllInSight, attends_here

__all__ = ["pick_all"]


def _picked(original: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Nothing: agentkv's attention does not ask, and some layers hand it on to the next."""
    return hidden_states.new_empty(0) if attends_here() else original(hidden_states, *args, **kwargs)


def _attended(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Layers cut the index's part out of a mask that is not there."""
    if attends_here():
        kwargs["attention_mask"] = AllInSight()
    return original(*args, **kwargs)


def pick_all(model: nn.Module) -> None:
    """Has the layers of a model attend to all tokens where it attends through a cache, in place."""
    for module in model.modules():
        layer: Any = module
        if not hasattr(layer, "indexer") or getattr(getattr(layer, "config", None), "index_topk", None) is None:
            continue
        layer.forward = partial(_attended, layer.forward)
        if layer.indexer is not None:
            layer.indexer.forward = partial(_picked, layer.indexer.forward)
