"""Calls that are written as Python: `[weather(city="Oslo"), now()]`."""

from __future__ import annotations

import ast
import warnings
from typing import Any

__all__ = ["parse_calls"]

_NAMES = {"true": True, "false": False, "null": None}


def parse_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and keyword arguments of the calls in a list, or of one call. Nothing is evaluated. Raises ValueError."""
    try:
        with warnings.catch_warnings():  # of escapes that Python does not know
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"no Python calls: {error}") from None
    calls = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
    return [_call(node) for node in calls]


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call):
        raise ValueError(f"no Python call: {ast.unparse(node)}")
    name = ast.unparse(node.func)
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError(f"{name} has arguments without a name")
    return name, {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}


def _value(node: ast.expr) -> Any:
    """A literal, also one with JSON's names for True, False and None."""
    match node:
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    raise ValueError(f"no literal: {ast.unparse(node)}")


def _key(node: ast.expr) -> str:
    key = _value(node)
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} is no str")
    return key
