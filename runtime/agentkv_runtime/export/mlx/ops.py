"""The MLX operations that each op of the edge graph becomes.

aten.linear, mm, bmm, matmul, addmm           LINEAR, MATMUL (+ ADD)
aten.embedding, index_select, index.Tensor    EMBEDDING, TAKE
agentkv.affine_linear, affine_embedding       AFFINE_LINEAR, AFFINE_EMBEDDING
agentkv.expert_linear, affine_expert_linear   EXPERT_LINEAR, AFFINE_EXPERT_LINEAR
agentkv.weighted_sum                          RESHAPE, MUL, SUM
topk, max.dim, gather, scatter                TOP_K, TAKE_ALONG, PUT_ALONG
agentkv.rms_norm, aten.layer_norm             RMS_NORM, LAYER_NORM
agentkv.rope of agentkv.rope_table            ROPE: MLX has no table of angles, it takes positions and frequencies
agentkv.update_and_attend                     UPDATE_AND_ATTEND
agentkv.short_conv, linear_attention,         SHORT_CONV, LINEAR_ATTENTION, SELECTIVE_SCAN
  selective_scan
softmax, mean, sum, amax, amin, _to_copy      SOFTMAX, MEAN, SUM, MAX, MIN, CAST
elementwise, clamp, where                     their namesakes, operands cast as torch promotes them
view, unsqueeze, squeeze, select, permute,    RESHAPE, TRANSPOSE, SLICE, CONCAT, BROADCAST
  transpose, slice, split, cat, expand
alias, clone, detach, getitem                 nothing
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from agentkv_runtime.export.mlx.builder import GraphBuilder, Value
from agentkv_runtime.export.mlx.elementwise import ELEMENTWISE
from agentkv_runtime.export.mlx.experts import EXPERTS
from agentkv_runtime.export.mlx.layers import LAYERS
from agentkv_runtime.export.mlx.mixers import MIXERS
from agentkv_runtime.export.mlx.shapes import SHAPES

__all__ = ["HANDLERS", "name_of"]

HANDLERS: dict[str, Callable[[GraphBuilder, fx.Node], Value | list[Value] | None]] = {
    **LAYERS,
    **MIXERS,
    **EXPERTS,
    **ELEMENTWISE,
    **SHAPES,
}
"""Functions by an op's name in the edge dialect, which append its instructions and return its results, or None."""


def name_of(node: fx.Node) -> str:
    """The op's name, such as `aten.linear.default`."""
    if isinstance(node.target, torch._ops.OpOverload):  # the few that the edge dialect leaves as they are
        return str(node.target)
    name = getattr(node.target, "__name__", None)
    return name if isinstance(name, str) else str(node.target)
