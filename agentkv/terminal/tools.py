"""Tools of a chat: the calculator, and those of a Python file."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from .._types.errors import InvalidInput
from ..agents.tool import Retry, Tool

_OPERATIONS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
MOST_CHARACTERS = 200


def calculate(expression: str) -> dict[str, Any]:
    """Computes an arithmetic expression of numbers. Raises Retry for anything else."""
    try:
        if len(expression) > MOST_CHARACTERS:
            raise ValueError(f"at most {MOST_CHARACTERS} characters")
        value = _value(ast.parse(expression, mode="eval").body)
        if not math.isfinite(value):
            raise ValueError("it is too large")
    except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise Retry(f"{expression!r} cannot be computed: {error}") from error
    return {"result": round(value, 4) if isinstance(value, float) and not value.is_integer() else int(value)}


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left, op, right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op, operand) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(operand))
    raise ValueError("only numbers, + - * / % and parentheses")


CALCULATOR: Tool[None, ..., Any] = Tool(
    "calculator",
    "do arithmetic",
    {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    calculate,
)


def tools_of(path: Path) -> list[Tool[None, ..., Any]]:
    """Runs a Python file and returns the `kv.tool` objects at its top level.

    Raises InvalidInput for a file that cannot run or has none.
    """
    spec = importlib.util.spec_from_file_location("agentkv_chat_tools", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is no Python file; give one with functions under @kv.tool")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    found = [value for value in vars(module).values() if isinstance(value, Tool)]
    if not found:
        raise InvalidInput(f"{path} has no tools; put @kv.tool over a function")
    return [replace(tool, function=_contained(tool.function)) for tool in found]


def _contained(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a tool's function: SystemExit and KeyboardInterrupt fail the call only."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with _no_end():
                return await function(*args, **kwargs)

        return awaited

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with _no_end():
            return function(*args, **kwargs)

    return called


@contextmanager
def _no_end() -> Iterator[None]:
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"it raised {type(error).__name__}") from error
