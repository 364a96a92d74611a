"""Linear layers over quantised weights and activations, as one op until XNNPACK sees them.

torchao spells such a layer in five ops, each of many more; a whole model of them took most of the time that lowering
took, which runs every op of the graph several times over.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as edge
from torch import fx
from torch.fx.passes.infra.pass_base import PassResult
from torch.nn import functional
from torchao.quantization import IntxUnpackedToInt8Tensor
from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
    IntxUnpackedToInt8TensorActivationQuantization,
)

__all__ = ["int8_linear", "int8_weight", "spell_linears"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")
_ACTIVATIONS = (torch.int8, -128, 127)


def int8_weight(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bits: int) -> IntxUnpackedToInt8Tensor:
    """The weight `[O, I]` as torchao has it, whose linear also quantises activations, per row."""
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


def _spell(graph: fx.Graph, node: fx.Node) -> None:
    """Puts torchao's ops in the place of one layer."""
    x, codes, scales, zeros, bias, bits = node.args
    rows: Any = x.meta["val"]  # type: ignore[union-attr]
    weight: Any = codes.meta["val"]  # type: ignore[union-attr]
    groups: Any = scales.meta["val"]  # type: ignore[union-attr]
    per_row, largest = [1] * (rows.dim() - 1) + [rows.shape[-1]], 1 << (int(bits) - 1)  # type: ignore[arg-type]
    ops: Any = edge.edge.torchao

    def call(target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
        made = graph.call_function(target, args)
        made.meta = {**node.meta, "val": value}
        return made

    per_token = rows.new_empty(rows.shape[:-1]), rows.new_empty(rows.shape[:-1], dtype=torch.int8)
    with graph.inserting_before(node):
        chosen = call(
            ops.choose_qparams_affine.default,
            (x, "ASYMMETRIC", per_row, *_ACTIVATIONS, None, None, torch.int8),
            per_token,
        )
        scale, zero = (call(getitem, (chosen, index), per_token[index]) for index in (0, 1))
        quantized = call(
            ops.quantize_affine.default,
            (x, per_row, scale, zero, *_ACTIVATIONS),
            rows.new_empty(rows.shape, dtype=torch.int8),
        )
        x = call(
            ops.dequantize_affine.default,
            (quantized, per_row, scale, zero, *_ACTIVATIONS),
            rows.new_empty(rows.shape),
        )
        real = call(
            ops.dequantize_affine.default,
            (codes, [1, weight.shape[1] // groups.shape[1]], scales, zeros, torch.int8, -largest, largest - 1),
            rows.new_empty(weight.shape),
        )
        args = (x, real) if bias is None else (x, real, bias)
        node.replace_all_uses_with(call(edge.edge.aten.linear.default, args, node.meta["val"]))
    graph.erase_node(node)


def spell_linears(module: fx.GraphModule) -> PassResult:
    """A pass over the edge graph: each `int8_linear` becomes the ops that XNNPACK's partitioner knows."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target == edge.edge.agentkv.int8_linear.default:
            _spell(module.graph, node)
    module.recompile()
    return PassResult(module, True)
