"""Ops of linear layers, experts and lookups over weights in GGUF's blocks."""

from __future__ import annotations

import torch
from torch.nn import functional

from agentkv_runtime._core import block_types, unpack_blocks
from agentkv_runtime.hf.expert_op import by_expert, check_experts

__all__ = ["block_expert_linear", "block_linear", "block_lookup"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")
_SIZES = {kind: (inputs, size) for kind, _, inputs, size in block_types()}


def _weight(rows: torch.Tensor, kind: int) -> torch.Tensor:
    return torch.from_numpy(unpack_blocks(rows.numpy(), kind))


def _linear(x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None, kind: int) -> torch.Tensor:
    return functional.linear(x, _weight(rows, kind), bias)


def _linear_fake(x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None, kind: int) -> torch.Tensor:
    del bias, kind
    return x.new_empty((*x.shape[:-1], rows.shape[0]))


def _expert_shape(
    x: torch.Tensor, chosen: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None, kind: int
) -> tuple[int | torch.SymInt, int, int]:
    inputs, size = _SIZES[kind]
    return check_experts(x, chosen, (*rows.shape[:-1], rows.shape[-1] // size * inputs), bias)


def _experts(
    x: torch.Tensor, chosen: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None, kind: int
) -> torch.Tensor:
    _expert_shape(x, chosen, rows, bias, kind)

    def layer(mine: torch.Tensor, expert: int) -> torch.Tensor:
        return _linear(mine, rows[expert], None if bias is None else bias[expert], kind)

    return by_expert(x, chosen, rows.shape[1], layer)


def _experts_fake(
    x: torch.Tensor, chosen: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None, kind: int
) -> torch.Tensor:
    return x.new_empty(_expert_shape(x, chosen, rows, bias, kind))


def _lookup(ids: torch.Tensor, rows: torch.Tensor, kind: int, width: int, factor: float) -> torch.Tensor:
    del width
    return _weight(rows[ids], kind) * factor


def _lookup_fake(ids: torch.Tensor, rows: torch.Tensor, kind: int, width: int, factor: float) -> torch.Tensor:
    del kind, factor
    return torch.empty((ids.shape[0], width), device=rows.device)


_LIBRARY.define("block_linear(Tensor x, Tensor rows, Tensor? bias, int kind) -> Tensor")
_LIBRARY.impl("block_linear", _linear, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::block_linear", _linear_fake, lib=_LIBRARY)
_LIBRARY.define("block_expert_linear(Tensor x, Tensor chosen, Tensor rows, Tensor? bias, int kind) -> Tensor")
_LIBRARY.impl("block_expert_linear", _experts, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::block_expert_linear", _experts_fake, lib=_LIBRARY)
_LIBRARY.define("block_lookup(Tensor ids, Tensor rows, int kind, int width, float factor) -> Tensor")
_LIBRARY.impl("block_lookup", _lookup, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::block_lookup", _lookup_fake, lib=_LIBRARY)

# x [..., I] float32, rows [O, bytes] uint8 of blocks of a kind (GGUF's id), bias [O] -> [..., O].
block_linear = torch.ops.agentkv.block_linear.default
# x [T, I], one row for all choices, or [T, K, I], float32; chosen [T, K] int64; rows [E, O, bytes] uint8; bias [E, O]
# -> [T, K, O].
block_expert_linear = torch.ops.agentkv.block_expert_linear.default
# ids [T] int64, rows [V, bytes] uint8 -> [T, width] float32, times the factor.
block_lookup = torch.ops.agentkv.block_lookup.default
