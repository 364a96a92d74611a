"""The attention function that transformers calls in place of its own, so that its decoder-only models run unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, PretrainedConfig

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.hf.op import update_and_attend

__all__ = [
    "ATTENTION_NAME",
    "agentkv_attention",
    "current_position",
    "feeding",
    "layer_window",
]

ATTENTION_NAME = "agentkv"

_position: ContextVar[torch.Tensor | None] = ContextVar("agentkv_position", default=None)


@contextmanager
def feeding(position: torch.Tensor) -> Iterator[None]:
    """Tells every attention layer called inside the positions of the rows, `[T]` int64."""
    token = _position.set(position)
    try:
        yield
    finally:
        _position.reset(token)


def current_position() -> torch.Tensor | None:
    """The positions that `feeding` announced, or None outside it."""
    return _position.get()


def layer_window(config: PretrainedConfig, layer_idx: int, sliding_window: int | None) -> int:
    """The window of one layer in positions, itself included; 0 for none."""
    layer_types = getattr(config, "layer_types", None)
    layer_type = layer_types[layer_idx] if layer_types else None
    if layer_type not in (None, "full_attention", "sliding_attention"):
        raise UnsupportedModelError(
            f"layer {layer_idx} of {config.model_type} is {layer_type!r}: only full and sliding attention are supported"
        )
    if sliding_window is None and layer_type != "full_attention":  # not every model hands its window on
        sliding_window = getattr(config, "sliding_window", None)
    if layer_type == "full_attention":
        return 0
    return int(sliding_window or 0)


def _refuse(module: torch.nn.Module, what: str) -> UnsupportedModelError:
    model_type = getattr(getattr(module, "config", None), "model_type", type(module).__name__)
    return UnsupportedModelError(f"{model_type} attends with {what}, which agentkv does not compute")


def agentkv_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls per layer: query `[1, Hq, T, D]`, key and value `[1, Hkv, T, D]`, out `[1, T, Hq, D]`.

    Positions come from `feeding` or else from `position_ids` `[1, T]`. No mask is built for this function's name: what
    a row sees follows from the cache. Raises UnsupportedModelError for what would change that or the scores.
    """
    if attention_mask is not None:
        raise _refuse(module, "a mask of its own")
    if dropout:
        raise _refuse(module, f"dropout {dropout}; call model.eval()")
    if kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise _refuse(module, "attention that is not causal")
    for name, meaning in (("softcap", "capped scores"), ("s_aux", "sinks"), ("position_bias", "position biases")):
        if kwargs.get(name) is not None:
            raise _refuse(module, f"{meaning} ({name})")
    position = _position.get()
    if position is None:
        position_ids = kwargs.get("position_ids")
        if position_ids is None or position_ids.dim() != 2:
            raise _refuse(module, "no [1, T] position_ids; run it inside feeding(position)")
        position = position_ids[0]
    layer_idx: int = module.layer_idx  # type: ignore[assignment]
    config: PretrainedConfig = module.config  # type: ignore[assignment]
    out = update_and_attend(
        query,
        key,
        value,
        position,
        layer_idx,
        float(scaling if scaling is not None else query.shape[-1] ** -0.5),
        query.dtype,
        layer_window(config, layer_idx, sliding_window),
    )
    return out.transpose(1, 2).contiguous(), None  # some models go on with views of it


AttentionInterface.register(ATTENTION_NAME, agentkv_attention)
