"""The attention function that transformers calls instead of its own, so that its decoder-only models run unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, PretrainedConfig

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.hf.op import update_and_attend
from agentkv_runtime.hf.temperature import Temperature

__all__ = [
    "ATTENTION_NAME",
    "AllInSight",
    "Feeding",
    "agentkv_attention",
    "attends_here",
    "current_position",
    "feeding",
    "layer_sight",
    "mixing",
    "mixing_layer",
    "remember_latent",
]

ATTENTION_NAME = "agentkv"
_WITHOUT_WINDOW = ("full_attention", "indexed_attention", "hybrid")  # hybrid: beside another mixer


class AllInSight:
    """Replaces a mask, or parts of one, in a model's code; hides nothing."""

    def __getitem__(self, _: object) -> AllInSight:
        return self


@dataclass
class Feeding:
    """State that the attention layers of a model share during one forward."""

    position: torch.Tensor
    """Positions of the rows, int64 `[T]`."""
    attends: bool = True
    """Whether layers attend through agentkv, or only read positions."""
    layers: set[int] = field(default_factory=set)
    """`layer_idx` of the layers that have attended."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """Keys and values of each layer of the cache so far, which are numbered in the order in which they run."""
    latents: dict[torch.nn.Module, torch.Tensor] = field(default_factory=dict)
    """Latent rows of each module of latent attention, for its own call of the attention function."""
    mixer: Any = None
    """The running layer that mixes tokens otherwise than by attention; None outside of one."""

    def cache_layer(self, key: torch.Tensor, value: torch.Tensor) -> tuple[int, bool]:
        """Index of the cache's layer for these keys and values, and whether it is new: layers may share one."""
        for index, (each_key, each_value) in enumerate(self.kept):
            if each_key is key and each_value is value:
                return index, False
        return self.new_layer(key, value), True

    def new_layer(self, key: torch.Tensor, value: torch.Tensor) -> int:
        """Index of a new layer of the cache, for these keys and values."""
        self.kept.append((key, value))
        return len(self.kept) - 1


_feeding: ContextVar[Feeding | None] = ContextVar("agentkv_feeding", default=None)


@contextmanager
def feeding(position: torch.Tensor, attends: bool = True) -> Iterator[Feeding]:
    """Announces the positions of the rows, int64 `[T]`, to attention layers called in the block; see `Feeding`."""
    forward = Feeding(position, attends)
    token = _feeding.set(forward)
    try:
        yield forward
    finally:
        _feeding.reset(token)


def current_position() -> torch.Tensor | None:
    """Positions that `feeding` announced, `[T]`; None outside of it."""
    forward = _feeding.get()
    return None if forward is None else forward.position


def attends_here() -> bool:
    """Whether a forward that attends through agentkv is running."""
    forward = _feeding.get()
    return forward is not None and forward.attends


@contextmanager
def mixing_layer(mixer: Any) -> Iterator[None]:
    """Marks `mixer` in the block as the running layer that mixes tokens otherwise than by attention."""
    forward = _feeding.get()
    if forward is not None and forward.attends:
        forward.mixer = mixer
        forward.layers.add(mixer.layer_idx)
    yield


def mixing(rows: torch.Tensor) -> tuple[Any, torch.Tensor, int]:
    """The running mixer, the positions of its rows `[T]`, and the index of a new layer of the cache for them."""
    forward = _feeding.get()
    assert forward is not None, "mixers go through the cache inside feeding(position)"
    return forward.mixer, forward.position, forward.new_layer(rows, rows)


def remember_latent(module: torch.nn.Module, row: torch.Tensor) -> bool:
    """Stores a latent row for the module's own attention; returns False if that is not agentkv's."""
    forward = _feeding.get()
    if forward is None or not forward.attends:
        return False
    forward.latents[module] = row
    return True


def layer_sight(config: PretrainedConfig, layer_idx: int | None, sliding_window: int | None) -> tuple[int, int]:
    """Window and chunk of a layer in positions, the row's own included; 0 for none.

    `layer_idx` is None for layers that share one attention module.
    """
    layer_types = getattr(config, "layer_types", None)
    layer_type = layer_types[layer_idx] if layer_types and layer_idx is not None else None
    if layer_type == "chunked_attention":
        return 0, int(config.attention_chunk_size)
    if layer_type not in (None, *_WITHOUT_WINDOW, "sliding_attention", "hybrid_sliding"):
        raise UnsupportedModelError(
            f"layer {layer_idx} of {config.model_type} is {layer_type!r}: only full, sliding and chunked attention are"
            " supported"
        )
    if sliding_window is None and layer_type not in _WITHOUT_WINDOW:  # not every model hands its window on
        sliding_window = getattr(config, "sliding_window", None)
    if layer_type in _WITHOUT_WINDOW:
        return 0, 0
    return int(sliding_window or 0), 0


def _refuse(module: torch.nn.Module, what: str) -> UnsupportedModelError:
    model_type = getattr(getattr(module, "config", None), "model_type", type(module).__name__)
    return UnsupportedModelError(f"{model_type} attends with {what}, which agentkv does not compute")


def agentkv_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | AllInSight | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, called by transformers.

    Takes query `[1, Hq, T, D]`, key `[1, Hkv, T, D]` and value `[1, Hkv, T, Dv]`; returns `[1, T, Hq, Dv]` and None.
    Positions come from `feeding` or else from `position_ids` `[1, T]`. Transformers builds no mask for this function,
    as the cache decides which positions a row sees. `s_aux` are sink scores and `slopes` those of ALiBi, `[Hq]` each
    (see `Scoring`). Raises UnsupportedModelError for arguments that would change visibility or scores otherwise.
    """
    if attention_mask is not None and not isinstance(attention_mask, AllInSight):
        raise _refuse(module, "a mask of its own")
    if dropout:
        raise _refuse(module, f"dropout {dropout}; call model.eval()")
    if kwargs.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise _refuse(module, "attention that is not causal")
    if kwargs.get("position_bias") is not None:
        raise _refuse(module, "position biases (position_bias)")
    forward = _feeding.get() or Feeding(_own_positions(module, kwargs.get("position_ids")))
    scale = float(scaling if scaling is not None else query.shape[-1] ** -0.5)
    layer_idx: int | None = getattr(module, "layer_idx", len(forward.kept))
    window, chunk = layer_sight(module.config, layer_idx, sliding_window)  # type: ignore[arg-type]
    if isinstance(temperature := getattr(module, "temperature", None), Temperature):
        query = query * temperature.of(forward.position)
    projection: Any = getattr(module, "kv_b_proj", None)
    latent = forward.latents.pop(module, None)
    if latent is not None:
        query, key, value = projection.absorbed(query), latent, latent[..., : projection.rank]
    cache_layer, writes = forward.cache_layer(key, value)
    if layer_idx is not None:
        forward.layers.add(layer_idx)
    out = update_and_attend(
        query,
        key,
        value,
        forward.position,
        cache_layer,
        scale,
        query.dtype,
        window,
        chunk,
        float(softcap or 0.0),
        s_aux,
        slopes,
        writes,
    )
    if latent is not None:
        out = projection.from_latent(out)
    return out.transpose(1, 2).contiguous(), None  # some models go on with views of it


def _own_positions(module: torch.nn.Module, position_ids: torch.Tensor | None) -> torch.Tensor:
    if position_ids is None or position_ids.dim() != 2:
        raise _refuse(module, "no [1, T] position_ids; run it inside feeding(position)")
    return position_ids[0]


AttentionInterface.register(ATTENTION_NAME, agentkv_attention)
