"""Rotary embeddings through our ops, where they compute exactly what the model's own functions do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agentkv_runtime.export.attention import UnsupportedModelError, current_position
from agentkv_runtime.export.row_ops import rope, rope_table

__all__ = ["own_rotary"]

_PROBE_POSITIONS = (0, 1, 2, 7, 100, 1023)


@dataclass(frozen=True)
class _Table:
    """Frequencies of one rotary embedding (of one layer type, where the model has several)."""

    inv_freq: torch.Tensor
    scaling: float


class _TableRotaryEmbedding(nn.Module):
    """Stands in for a model's rotary embedding: returns the table where the model expects cos and sin."""

    def __init__(self, tables: dict[str | None, _Table]) -> None:
        super().__init__()
        self._scaling = {layer_type: table.scaling for layer_type, table in tables.items()}
        for layer_type, table in tables.items():
            self.register_buffer(self._name(layer_type), table.inv_freq.detach().clone())

    @staticmethod
    def _name(layer_type: str | None) -> str:
        return "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The table `[T, 2 F]` for position_ids `[1, T]`, twice."""
        position = current_position()
        if position is None:
            position = position_ids[0]
        table = rope_table(position, getattr(self, self._name(layer_type)), self._scaling[layer_type])
        return table, table


def _long_context(module: nn.Module, layer_type: str | None, max_context: int | None) -> torch.Tensor | None:
    """Long-rope's long frequencies when the caller's context exceeds the original one."""
    parameters: dict[str, Any] = module.config.rope_parameters  # type: ignore[union-attr, assignment]
    if layer_type is not None:
        parameters = parameters[layer_type]
    original = parameters.get("original_max_position_embeddings")
    if parameters["rope_type"] != "longrope" or max_context is None or original is None or max_context <= original:
        return None
    kwargs = {"layer_type": layer_type} if layer_type is not None else {}
    inv_freq, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, torch.device("cpu"), seq_len=original + 1, **kwargs)
    return inv_freq


def _tables(module: nn.Module, max_context: int | None) -> dict[str | None, _Table]:
    rope_type: Any = getattr(module, "rope_type", None)
    layer_types: list[str | None] = list(rope_type) if isinstance(rope_type, dict) else [None]
    tables = {}
    for layer_type in layer_types:
        prefix = f"{layer_type}_" if layer_type is not None else ""
        inv_freq = getattr(module, f"{prefix}original_inv_freq", None)
        if inv_freq is None:
            inv_freq = getattr(module, f"{prefix}inv_freq")
        scaling = getattr(module, f"{prefix}attention_scaling", 1.0)
        tables[layer_type] = _Table(inv_freq.float(), float(scaling))
    return tables


def _original_context(module: nn.Module) -> int:
    """Positions below which the model's own rotary embedding is the same for every input."""
    config: Any = module.config
    parameters = config.rope_parameters
    every = parameters.values() if isinstance(getattr(module, "rope_type", None), dict) else [parameters]
    limits = [p.get("original_max_position_embeddings") for p in every if isinstance(p, dict)]
    return int(min([limit for limit in limits if limit] + [getattr(config, "max_position_embeddings", 1024)]))


def _matches(module: nn.Module, apply: Callable[..., Any], tables: dict[str | None, _Table], interleaved: bool) -> bool:
    """Does our rope on our tables equal the model's own functions on every head size that those accept?"""
    generator = torch.Generator().manual_seed(0)
    # Beyond the original context, some frequencies depend on the longest position that they are asked for.
    limit = _original_context(module)
    position = torch.tensor([p for p in _PROBE_POSITIONS if p < limit])
    for layer_type, table in tables.items():
        args = (layer_type,) if layer_type is not None else ()
        cos, sin = module(torch.zeros(1), position[None], *args)
        width = 2 * table.inv_freq.shape[0]
        if cos.shape[-1] not in (width, width // 2):
            return False
        accepted = 0
        for head_dim in (width, width + 16):
            q, k = (torch.randn((1, h, len(position), head_dim), generator=generator) for h in (4, 2))
            try:
                expected = apply(q, k, cos, sin)
            except RuntimeError:  # the model slices the rotated part itself
                continue
            accepted += 1
            own = rope_table(position, table.inv_freq, table.scaling)
            for x, y in zip((q, k), expected, strict=True):
                if x.shape != y.shape or not torch.allclose(rope(x, own, interleaved), y, rtol=1e-4, atol=1e-4):
                    return False
        if accepted == 0:
            return False
    return True


def _patched(interleaved: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def apply_rotary_pos_emb(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del sin  # the table, as cos
        if unsqueeze_dim == 2:
            turned = (rope(x.transpose(1, 2), cos, interleaved).transpose(1, 2) for x in (q, k))
        else:
            turned = (rope(x, cos, interleaved) for x in (q, k))
        q_out, k_out = turned
        return q_out, k_out

    return apply_rotary_pos_emb


def _modeling_module(model: nn.Module) -> ModuleType:
    return sys.modules[type(model).__module__]


@contextmanager
def own_rotary(model: nn.Module, max_context: int | None = None) -> Iterator[bool]:
    """Inside, the model rotates queries and keys through `rope_table` and `rope`; yields whether it does.

    Where the model's own functions compute something else they stay. Frequencies that depend on how long the input is
    would make a token's keys depend on its neighbours: long-rope is fixed to its short factors, or to the long ones
    when `max_context` exceeds the original context. Raises UnsupportedModelError where that cannot be done.
    """
    modeling = _modeling_module(model)
    apply = getattr(modeling, "apply_rotary_pos_emb", None)
    rotaries = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child).__name__.endswith("RotaryEmbedding")
    ]
    interleaved: bool | None = None
    if apply is not None and rotaries:
        found = [(child, _tables(child, max_context)) for _, _, child in rotaries]
        for choice in (False, True):
            if all(_matches(child, apply, tables, choice) for child, tables in found):
                interleaved = choice
                break
    if interleaved is None:
        for _, _, child in rotaries:
            rope_type = getattr(child, "rope_type", "default")
            kinds = set(rope_type.values()) if isinstance(rope_type, dict) else {rope_type}
            if kinds & {"dynamic", "longrope"}:
                raise UnsupportedModelError(
                    f"{type(model).__name__} rotates by {sorted(kinds)}, which agentkv cannot fix ahead of time"
                )
        yield False
        return
    for parent, name, child in rotaries:
        tables = _tables(child, max_context)
        for layer_type, table in tables.items():
            long_freq = _long_context(child, layer_type, max_context)
            if long_freq is not None:
                tables[layer_type] = _Table(long_freq.float(), table.scaling)
        setattr(parent, name, _TableRotaryEmbedding(tables))
    modeling.apply_rotary_pos_emb = _patched(interleaved)  # type: ignore[attr-defined]
    try:
        yield True
    finally:
        modeling.apply_rotary_pos_emb = apply  # type: ignore[attr-defined]
        for parent, name, child in rotaries:
            setattr(parent, name, child)
