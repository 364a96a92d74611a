"""Linear layers of experts over quantised weights and activations, as one op."""

from __future__ import annotations

import torch
from torch.nn import functional

from agentkv_runtime.export.cpu.int8_linear import int8_weight
from agentkv_runtime.hf.expert_op import by_expert, check_experts

__all__ = ["int8_expert_linear"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def _eager(
    x: torch.Tensor,
    chosen: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    bits: int,
) -> torch.Tensor:
    check_experts(x, chosen, codes.shape, bias)
    zeros = torch.zeros(scales.shape[1:], dtype=torch.int8)

    def layer(rows: torch.Tensor, expert: int) -> torch.Tensor:
        weight = int8_weight(codes[expert], scales[expert], zeros, bits)
        return functional.linear(rows, weight, None if bias is None else bias[expert])

    return by_expert(x, chosen, codes.shape[1], layer)


def _fake(
    x: torch.Tensor,
    chosen: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    bits: int,
) -> torch.Tensor:
    del scales, bits
    return x.new_empty(check_experts(x, chosen, codes.shape, bias))


_LIBRARY.define(
    "int8_expert_linear(Tensor x, Tensor chosen, Tensor codes, Tensor scales, Tensor? bias, int bits) -> Tensor"
)
_LIBRARY.impl("int8_expert_linear", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::int8_expert_linear", _fake, lib=_LIBRARY)

# x [T, I], one row for all choices, or [T, K, I], float32; chosen [T, K] int64; codes [E, O, I] int8 of 4 or 8 bits,
# scales [E, O, I / group]; bias [E, O] -> [T, K, O].
int8_expert_linear = torch.ops.agentkv.int8_expert_linear.default
