"""Reshapes without symbols, so that no partition takes a size as an input, and no copies of nothing."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.fx.passes.infra.pass_base import PassResult

__all__ = ["simplify_views"]


def simplify_views(module: fx.GraphModule) -> PassResult:
    """Rewrites the edge graph: one symbolic size of a reshape becomes -1, and aliases are removed."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        name = getattr(node.target, "__name__", "")
        if name == "aten.view_copy.default":
            shape: Any = node.meta["val"].shape
            sizes = [size if isinstance(size, int) else -1 for size in shape]
            if sizes.count(-1) <= 1:
                node.args = (node.args[0], sizes)
        elif name == "aten.alias_copy.default":
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    module.recompile()
    return PassResult(module, True)
