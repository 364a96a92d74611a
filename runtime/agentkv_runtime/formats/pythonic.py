"""Calls that are written as Python: `[weather(city="Oslo"), now()]`."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from agentkv_runtime.formats.call_body import PythonCalls, Written

__all__ = ["parse_calls"]

_NAME = re.compile(r"[\w.:/-]+")  # also of tools that are no names in Python
_NAMES = {"true": True, "false": False, "null": None}


def parse_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Parses names and keyword arguments of a list of calls, or of one; evaluates nothing. Raises ValueError."""
    body = PythonCalls()
    calls = [_call(event.text) for event in body.feed(text) if isinstance(event, Written)]
    if body.unfinished:
        raise ValueError(f"no Python call: {body.unfinished}")
    return calls


def _call(text: str) -> tuple[str, dict[str, Any]]:
    name, _, arguments = text.partition("(")
    if not _NAME.fullmatch(name.strip()):
        raise ValueError(f"no name of a tool: {name}")
    try:
        with warnings.catch_warnings():  # of escapes that Python does not know
            warnings.simplefilter("ignore")
            call = ast.parse(f"_({arguments}", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"no Python call: {error}") from None
    if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError(f"{name} has arguments without a name")
    return name.strip(), {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}


def _value(node: ast.expr) -> Any:
    """Value of a literal, which may use JSON's names for True, False and None. Raises ValueError."""
    match node:
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
            value, bool
        ):
            return -value
    raise ValueError(f"no literal: {ast.unparse(node)}")


def _key(node: ast.expr) -> str:
    key = _value(node)
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} is no str")
    return key
