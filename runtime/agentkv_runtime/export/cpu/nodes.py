"""Ops of the edge graph that the delegate computes, and questions about its nodes."""

from __future__ import annotations

from executorch.exir.dialects._ops import ops as edge
from torch import fx

from agentkv_runtime.export import row_ops as _row_ops  # noqa: F401
from agentkv_runtime.export.cpu import block_ops as _block_ops  # noqa: F401
from agentkv_runtime.export.cpu import int8_experts as _int8_experts  # noqa: F401
from agentkv_runtime.export.cpu import int8_linear as _int8_linear  # noqa: F401
from agentkv_runtime.export.cpu.strided import is_heads, is_rows
from agentkv_runtime.hf import convolution as _convolution  # noqa: F401
from agentkv_runtime.hf import expert_op as _expert_op  # noqa: F401
from agentkv_runtime.hf import linear_attention as _linear_attention  # noqa: F401
from agentkv_runtime.hf import op as _op  # noqa: F401  (defines the ops)
from agentkv_runtime.hf import selective_scan as _selective_scan  # noqa: F401

__all__ = [
    "ADD",
    "ATTEND",
    "BLOCK_EXPERTS",
    "BLOCK_LINEAR",
    "BLOCK_LOOKUP",
    "CONVOLVE",
    "EXPERTS",
    "FLOAT_EXPERTS",
    "GATE",
    "INT8_EXPERTS",
    "LINEAR",
    "LINEARS",
    "LINEAR_ATTEND",
    "MULTIPLY",
    "PARAMETER",
    "RMS_NORM",
    "ROPE",
    "ROPE_TABLE",
    "ROW_OPS",
    "SCAN",
    "WEIGHTED_SUM",
    "gate_of",
    "group_size",
    "is_product",
    "is_sum",
    "is_view",
    "lone",
    "name_of",
    "source_of",
]

ATTEND = edge.edge.agentkv.update_and_attend.default
RMS_NORM = edge.edge.agentkv.rms_norm.default
ROPE = edge.edge.agentkv.rope.default
ROPE_TABLE = edge.edge.agentkv.rope_table.default
ROW_OPS = frozenset({RMS_NORM, ROPE, ROPE_TABLE})
CONVOLVE = edge.edge.agentkv.short_conv.default
LINEAR_ATTEND = edge.edge.agentkv.linear_attention.default
SCAN = edge.edge.agentkv.selective_scan.default
LINEAR = edge.edge.agentkv.int8_linear.default
BLOCK_LINEAR = edge.edge.agentkv.block_linear.default
BLOCK_LOOKUP = edge.edge.agentkv.block_lookup.default
LINEARS = frozenset({LINEAR, BLOCK_LINEAR})
FLOAT_EXPERTS = edge.edge.agentkv.expert_linear.default
INT8_EXPERTS = edge.edge.agentkv.int8_expert_linear.default
BLOCK_EXPERTS = edge.edge.agentkv.block_expert_linear.default
WEIGHTED_SUM = edge.edge.agentkv.weighted_sum.default
EXPERTS = frozenset({FLOAT_EXPERTS, INT8_EXPERTS, BLOCK_EXPERTS, WEIGHTED_SUM})
GATE = edge.edge.agentkv.gate.default
ADD = edge.edge.aten.add.Tensor
MULTIPLY = edge.edge.aten.mul.Tensor
PARAMETER = "agentkv_parameter"
"""Key of a constant's `meta` that has its name in the traced model."""

_VIEWS = frozenset(
    {
        "aten.alias_copy.default",
        "aten.clone.default",
        "aten.permute_copy.default",
        "aten.slice_copy.Tensor",
        "aten.squeeze_copy.dims",
        "aten.transpose_copy.int",
        "aten.unsqueeze_copy.default",
        "aten.view_copy.default",
        "dim_order_ops._clone_dim_order.default",
    }
)


def name_of(node: fx.Node) -> str:
    """Name of the node's op."""
    name = getattr(node.target, "__name__", None)
    return name if isinstance(name, str) else str(node.target)


def is_view(node: fx.Node) -> bool:
    """Whether the node only changes shape or strides, and so compiles to nothing unless its result must be dense."""
    return node.op == "call_function" and name_of(node) in _VIEWS


def is_sum(node: fx.Node) -> bool:
    """Whether the node adds rows to rows."""
    plain = node.target == ADD and len(node.all_input_nodes) == 2 and node.kwargs.get("alpha", 1) == 1
    return bool(plain) and _elementwise(node)


def _alike(node: fx.Node) -> bool:
    """Whether a node and its inputs have the same shape; compares expressions, as comparing sizes would fix symbols."""
    shapes = [
        [size if isinstance(size, int) else size.node.expr for size in each.meta["val"].shape]
        for each in (node, *node.all_input_nodes)
    ]
    return all(shape == shapes[0] for shape in shapes)


def _elementwise(node: fx.Node) -> bool:
    return _alike(node) and all(is_rows(each) for each in node.all_input_nodes)


def source_of(node: fx.Node) -> fx.Node:
    """The node that a chain of views leads to; the node itself if it is no view."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def gate_of(product: fx.Node) -> fx.Node | None:
    """The factor of a product that is a gate with no other user; None without one."""
    if product.target != MULTIPLY or not _alike(product):
        return None
    for factor in product.all_input_nodes:
        if factor.target == GATE and is_heads(factor) and list(factor.users) == [product]:
            return factor
    return None


def is_product(node: fx.Node) -> bool:
    """Whether the node multiplies rows by rows."""
    return node.target == MULTIPLY and len(node.all_input_nodes) == 2 and _elementwise(node)


def lone(node: fx.Node) -> bool:
    """Whether the node, and each node that it is a view of, has one user, which may then overwrite its rows."""
    while len(node.users) == 1:
        if not is_view(node):
            return True
        node = node.all_input_nodes[0]
    return False


def group_size(layer: fx.Node) -> int:
    """Number of inputs of a quantised linear layer, or of experts, that share a scale."""
    first = 2 if layer.target == INT8_EXPERTS else 1
    codes, scales = (node.meta["val"].shape for node in layer.all_input_nodes[first : first + 2])
    return int(codes[-1]) // int(scales[-1])
