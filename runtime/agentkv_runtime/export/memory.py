"""Memory of a traced program's forward at its bounds, which is reserved when the program is loaded."""

from __future__ import annotations

from torch import SymInt, Tensor, fx
from torch.export import ExportedProgram

from agentkv_runtime.export.checks import check_value

__all__ = ["check_memory"]


def _bytes(value: object, bounds: dict[object, int]) -> int:
    if not isinstance(value, Tensor):
        return 0
    size = value.element_size()
    for length in value.shape:
        if isinstance(length, SymInt):
            symbols = {symbol: bounds.get(symbol, 1) for symbol in length.node.expr.free_symbols}
            size *= int(length.node.expr.subs(symbols))
        else:
            size *= length
    return size


def _module(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    path = [name for name, _ in stack.values()]
    return path[-1].removeprefix("model.") if path else str(node)


def check_memory(name: str, traced: ExportedProgram, max_tokens: int, max_logits: int) -> None:
    """Raises ExportError, naming the module and rows that fit, for a value that takes more than 4 GiB at the bounds.

    `traced` is forward(tokens [T], position [T], logits_indices [N]) of the model called `name`.
    """
    placeholders = {node.name: node for node in traced.graph.nodes if node.op == "placeholder"}
    bounds: dict[object, int] = {}
    for argument, bound in (("tokens", max_tokens), ("position", max_tokens), ("logits_indices", max_logits)):
        length = placeholders[argument].meta["val"].shape[0]
        bounds.update(dict.fromkeys(length.node.expr.free_symbols, bound))
    size, node = max(
        ((_bytes(node.meta.get("val"), bounds), node) for node in traced.graph.nodes if node.op == "call_function"),
        key=lambda each: each[0],
    )
    holder = f"{name}: with max_tokens {max_tokens} and max_logits {max_logits}, {_module(node)}"
    check_value(holder, size, "max_tokens", max_tokens)
