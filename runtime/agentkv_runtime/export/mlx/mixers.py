"""What mixes tokens otherwise than attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from agentkv_runtime.export.mlx.builder import GraphBuilder, Value, refusal
from agentkv_runtime.export.mlx.graph import Opcode

__all__ = ["MIXERS"]


def _mixer(b: GraphBuilder, node: fx.Node, opcode: Opcode, args: list[Any], layer: int, position: fx.Node) -> Value:
    """Of which `args`, None for those left out, and then layer and what else there is in integers."""
    if not b.is_input(b.value(position)):
        raise refusal(node, "its positions are computed, not given")
    values = [None if arg is None else b.value(arg) for arg in args]
    return b.emit(opcode, values, (layer,), dtype=node.meta["val"].dtype)


def _short_conv(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, weight, bias, position, layer = args
    return _mixer(b, node, Opcode.SHORT_CONV, [x, weight, position, bias], layer, position)


MIXERS: dict[str, Callable[[GraphBuilder, fx.Node], Value | list[Value] | None]] = {
    "agentkv.short_conv.default": _short_conv,
}
