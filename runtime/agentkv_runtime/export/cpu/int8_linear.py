"""Linear layers over quantised weights and activations, as one op instead of torchao's five."""

from __future__ import annotations

import torch
from torch.nn import functional
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
    IntxUnpackedToInt8TensorActivationQuantization,
)

__all__ = ["int8_linear", "int8_weight"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def int8_weight(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> IntxUnpackedToInt8Tensor:
    """The weight `[O, I]` as torchao's tensor, whose linear also quantises activations per row."""
    return IntxUnpackedToInt8Tensor(
        codes,
        scales,
        zeros,
        torch.int4 if bits == 4 else torch.int8,  # type: ignore[attr-defined]
        (1, codes.shape[1] // scales.shape[1]),
        torch.float32,
        IntxUnpackedToInt8TensorActivationQuantization.INT8_ASYM_PER_TOKEN,
    )


def _eager(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    bias: torch.Tensor | None,
    bits: int,
) -> torch.Tensor:
    return functional.linear(x, int8_weight(codes, scales, zeros, bits), bias)


def _fake(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    bias: torch.Tensor | None,
    bits: int,
) -> torch.Tensor:
    del scales, zeros, bias, bits
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


_LIBRARY.define("int8_linear(Tensor x, Tensor codes, Tensor scales, Tensor zeros, Tensor? bias, int bits) -> Tensor")
_LIBRARY.impl("int8_linear", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::int8_linear", _fake, lib=_LIBRARY)

# x [..., I] float32, codes [O, I] int8 of 4 or 8 bits, scales and zeros [O, I / group], bias [O] -> [..., O].
int8_linear = torch.ops.agentkv.int8_linear.default
