"""Lowering of mixers of tokens other than attention: convolutions, linear attention, scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from agentkv_runtime.export.mlx.builder import GraphBuilder, Value, refusal
from agentkv_runtime.export.mlx.graph import Opcode

__all__ = ["MIXERS"]


def _mixer(
    b: GraphBuilder, node: fx.Node, opcode: Opcode, given: Sequence[Any], optional: Sequence[Any], ints: Sequence[int]
) -> Value:
    """Emits an instruction over the `given` arguments, positions last, and `optional` ones, which may be None.

    Raises UnsupportedModelError for positions that are no input of the program.
    """
    if not b.is_input(b.value(given[-1])):
        raise refusal(node, "its positions are computed, not given")
    values = [None if arg is None else b.value(arg) for arg in (*given, *optional)]
    return b.emit(opcode, values, ints, dtype=node.meta["val"].dtype)


def _short_conv(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, weight, bias, position, layer = args
    return _mixer(b, node, Opcode.SHORT_CONV, (x, weight, position), (bias,), (layer,))


def _linear_attention(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    q, k, v, decay, beta, corrects, skip, position, layer = args
    given, ints = (q, k, v, decay, position), (layer, int(corrects))
    return _mixer(b, node, Opcode.LINEAR_ATTENTION, given, (beta, skip), ints)


def _selective_scan(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    *given, layer = args
    return _mixer(b, node, Opcode.SELECTIVE_SCAN, given, (), (layer,))


MIXERS: dict[str, Callable[[GraphBuilder, fx.Node], Value | list[Value] | None]] = {
    "agentkv.short_conv.default": _short_conv,
    "agentkv.linear_attention.default": _linear_attention,
    "agentkv.selective_scan.default": _selective_scan,
}
