"""Rotary embeddings through our ops, for models whose own functions compute the same.

Models have functions of two forms: `apply_rotary_pos_emb(q, k, cos, sin)` for `[1, H, T, D]`, and
`apply_rotary_emb(q, k, turns)`, which takes turns as complex numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.export.frequencies import rotary_frequencies
from agentkv_runtime.export.row_ops import rope, rope_table
from agentkv_runtime.hf.attention import current_position, feeding
from agentkv_runtime.hf.positions import long_factors, position_limit, rope_parameters

__all__ = ["own_rotary"]

_PROBE_POSITIONS = (0, 1, 2, 7, 100, 1023)
_PROBE_ROWS = 8
_BY_ANGLES, _BY_TURNS = "apply_rotary_pos_emb", "apply_rotary_emb"


@dataclass(frozen=True)
class _Table:
    """Frequencies of one rotary embedding, or of one layer type of it."""

    inv_freq: torch.Tensor
    scaling: float


class _TableRotaryEmbedding(nn.Module):
    """Replaces a model's rotary embedding: returns the table where the model expects cos and sin, or turns."""

    def __init__(self, tables: dict[str | None, _Table], complex_turns: bool) -> None:
        super().__init__()
        self._complex_turns = complex_turns
        self._scaling = {layer_type: table.scaling for layer_type, table in tables.items()}
        for layer_type, table in tables.items():
            self.register_buffer(self._name(layer_type), table.inv_freq.detach().clone())

    @staticmethod
    def _name(layer_type: str | None) -> str:
        return "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The table `[T, 2 F]` for position_ids `[1, T]`, twice where the model expects two."""
        position = current_position()
        if position is None:
            position = position_ids[0]
        table = rope_table(position, getattr(self, self._name(layer_type)), self._scaling[layer_type])
        return table if self._complex_turns else (table, table)


def _has_tables(module: nn.Module) -> bool:
    try:
        return bool(_tables(module))
    except AttributeError:  # it keeps its frequencies elsewhere
        return False


def _tables(module: nn.Module) -> dict[str | None, _Table]:
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


def _matches(module: nn.Module, apply: Callable[..., Any], tables: dict[str | None, _Table], interleaved: bool) -> bool:
    """Whether our rope on our tables equals the model's own functions for every head size that those accept."""
    generator = torch.Generator().manual_seed(0)
    # Beyond the limit, some frequencies depend on the longest position that they are asked for.
    config: Any = module.config
    limit = position_limit(config.get_text_config())
    position = torch.tensor([p for p in _PROBE_POSITIONS if limit is None or p < limit])
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
            except Exception:  # the model slices the rotated part itself, or its function takes something else
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


def _turned_tokens_first(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rope(q.transpose(1, 2), table, True).transpose(1, 2), rope(k.transpose(1, 2), table, True).transpose(1, 2)


def _turned_heads_first(q: torch.Tensor, k: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rope(q, table, True), rope(k, table, True)


def _by_turns(apply: Callable[..., Any], found: list[_StandIn]) -> Callable[..., Any] | None:
    """Our counterpart of `apply`, for heads first or tokens first; None if neither gives equal results."""
    generator = torch.Generator().manual_seed(0)
    position = torch.arange(_PROBE_ROWS)
    for ours in (_turned_heads_first, _turned_tokens_first):
        for each in found:
            table = each.tables[None]
            head_dim = 2 * table.inv_freq.shape[0]
            shape = (1, 4, _PROBE_ROWS, head_dim) if ours is _turned_heads_first else (1, _PROBE_ROWS, 4, head_dim)
            q, k = (torch.randn(shape, generator=generator) for _ in "qk")
            try:
                expected = apply(q, k, each.original(q, position[None]))
            except Exception:  # the other form
                break
            got = ours(q, k, rope_table(position, table.inv_freq, table.scaling))
            if not all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(got, expected, strict=True)):
                break
        else:
            return ours
    return None


@dataclass(frozen=True)
class _Rotation:
    """Replacements of a model's function `name` and of its rotary embeddings."""

    name: str
    apply: Callable[..., Any]
    stand_ins: list[_StandIn]


@dataclass(frozen=True)
class _StandIn:
    """Our tables for one of the model's rotary embeddings, and the place of that embedding."""

    parent: nn.Module
    name: str
    original: nn.Module
    tables: dict[str | None, _Table]


def _rotation(model: nn.Module) -> _Rotation | None:
    """Replacements of the model's rotation; None if ours would compute something else.

    Raises nothing: an exception of the model's functions means that the model keeps them.
    """
    modeling = sys.modules[type(model).__module__]
    found = [
        _StandIn(parent, name, child, _tables(child))
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child).__name__.endswith("RotaryEmbedding") and _has_tables(child)
    ]
    apply = getattr(modeling, _BY_ANGLES, None)
    by_turns = getattr(modeling, _BY_TURNS, None)
    try:
        if not found:
            return None
        if apply is not None:
            for interleaved in (False, True):
                if all(_matches(each.original, apply, each.tables, interleaved) for each in found):
                    return _Rotation(_BY_ANGLES, _patched(interleaved), found)
        elif by_turns is not None and (ours := _by_turns(by_turns, found)) is not None:
            return _Rotation(_BY_TURNS, ours, found)
    except Exception:  # a rotary embedding of another form
        return None
    return None


@contextmanager
def _installed(model: nn.Module, rotation: _Rotation) -> Iterator[None]:
    modeling: Any = sys.modules[type(model).__module__]
    apply = getattr(modeling, rotation.name)
    for each in rotation.stand_ins:
        setattr(each.parent, each.name, _TableRotaryEmbedding(each.tables, rotation.name == _BY_TURNS))
    setattr(modeling, rotation.name, rotation.apply)
    try:
        yield
    finally:
        setattr(modeling, rotation.name, apply)
        for each in rotation.stand_ins:
            setattr(each.parent, each.name, each.original)


def _same_logits(model: Any, rotation: _Rotation) -> bool:
    """Whether the replacements leave the logits equal; a model may use more of a rotary embedding than its result."""
    tokens, position = torch.arange(1, 1 + _PROBE_ROWS), torch.arange(_PROBE_ROWS)
    inputs = {"input_ids": tokens[None], "position_ids": position[None], "use_cache": False}
    with feeding(position, attends=False):
        want = model(**inputs).logits
        try:
            with _installed(model, rotation):
                got = model(**inputs).logits
        except Exception:  # it asked the stand-in for something that only its own embedding has
            return False
    return bool((got - want).abs().max() <= 1e-4 * want.abs().max().clamp(min=1.0))


def _rounded_once(stand_in: _StandIn, long: bool) -> _StandIn:
    """The stand-in with frequencies of `export.frequencies`, equal on every machine, if they agree with the model's."""
    config: Any = getattr(stand_in.original, "config", None)
    tables = dict(stand_in.tables)
    for layer_type, table in stand_in.tables.items():
        parameters = getattr(config, "rope_parameters", None) or {}
        parameters = parameters if layer_type is None else parameters.get(layer_type, {})
        try:
            head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            own = rotary_frequencies(parameters, head_dim, config.max_position_embeddings, long=long)
        except (AttributeError, KeyError, TypeError):  # a config of another form
            continue
        inv_freq = None if own is None else torch.from_numpy(own.inv_freq)
        if own is None or inv_freq is None or inv_freq.shape != table.inv_freq.shape:
            continue
        if torch.allclose(inv_freq, table.inv_freq, rtol=1e-5, atol=0):
            tables[layer_type] = _Table(inv_freq, table.scaling)
    return replace(stand_in, tables=tables)


def _long_tables(stand_in: _StandIn) -> _StandIn:
    """The stand-in with frequencies of long-rope's long factors."""
    config: Any = stand_in.original.config
    tables = dict(stand_in.tables)
    for layer_type, table in stand_in.tables.items():
        of_layer = {} if layer_type is None else {"layer_type": layer_type}
        parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        if parameters["rope_type"] == "longrope":
            beyond = parameters["original_max_position_embeddings"] + 1
            frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=beyond, **of_layer)
            tables[layer_type] = _Table(frequencies.float(), table.scaling)
    return replace(stand_in, tables=tables)


@contextmanager
def own_rotary(model: Any, max_context: int | None = None) -> Iterator[bool]:
    """Has the model rotate queries and keys through `rope_table` and `rope` in the block; yields whether it does.

    Models whose own functions compute something else, or that use more than their results, keep them. Frequencies that
    depend on the length of the input would make a token's keys depend on its neighbours, so long-rope is fixed to its
    short factors, or to the long ones if `max_context` exceeds the original context. Raises UnsupportedModelError if
    that cannot be done.
    """
    config = model.config.get_text_config()
    rotation = _rotation(model)
    if rotation is None or not _same_logits(model, rotation):
        moving = {str(parameters.get("rope_type")) for parameters in rope_parameters(config)} & {"dynamic", "longrope"}
        if moving:
            raise UnsupportedModelError(
                f"{config.model_type} rotates by {sorted(moving)}, which agentkv cannot fix ahead of time"
            )
        yield False
        return
    long = long_factors(config, max_context)
    found = [_long_tables(each) for each in rotation.stand_ins] if long else rotation.stand_ins
    rotation = replace(rotation, stand_ins=[_rounded_once(each, long) for each in found])
    with _installed(model, rotation):
        yield True
