"""Linear layers of experts over weights of 4 or 8 bits, as one op."""

from __future__ import annotations

import torch
from torch.nn import functional

from agentkv_runtime.export.mlx.affine import affine_dequantize, check_affine
from agentkv_runtime.hf.expert_op import by_expert, check_experts

__all__ = ["affine_expert_linear"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def _check(
    x: torch.Tensor,
    chosen: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    bias: torch.Tensor | None,
    group: int,
    bits: int,
) -> tuple[int | torch.SymInt, int, int]:
    width = check_affine(packed, scales, biases, group, bits)
    return check_experts(x, chosen, (*packed.shape[:-1], width), bias)


def _eager(
    x: torch.Tensor,
    chosen: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    bias: torch.Tensor | None,
    group: int,
    bits: int,
) -> torch.Tensor:
    _check(x, chosen, packed, scales, biases, bias, group, bits)

    def layer(rows: torch.Tensor, expert: int) -> torch.Tensor:
        weight = affine_dequantize(packed[expert], scales[expert], biases[expert], group, bits)
        return functional.linear(rows, weight, None if bias is None else bias[expert])

    return by_expert(x, chosen, packed.shape[1], layer)


def _fake(
    x: torch.Tensor,
    chosen: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    bias: torch.Tensor | None,
    group: int,
    bits: int,
) -> torch.Tensor:
    return x.new_empty(_check(x, chosen, packed, scales, biases, bias, group, bits))


_LIBRARY.define(
    "affine_expert_linear(Tensor x, Tensor chosen, Tensor packed, Tensor scales, Tensor biases, Tensor? bias,"
    " int group, int bits) -> Tensor"
)
_LIBRARY.impl("affine_expert_linear", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::affine_expert_linear", _fake, lib=_LIBRARY)

# x [T, I], one row for all choices, or [T, K, I]; chosen [T, K] int64; packed [E, O, I bits / 32] uint32, scales and
# biases [E, O, I / group] in the dtype of x and bias [E, O] -> [T, K, O].
affine_expert_linear = torch.ops.agentkv.affine_expert_linear.default
