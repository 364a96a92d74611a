"""Grammars as JSON, for a server that holds an output."""

from __future__ import annotations

from typing import Any

from .._errors import InvalidInput
from .._shown import shown
from ._thought import Thought
from ._typed import Typed, _choices, _one_of
from .constraint import Constraint
from .grammar import Grammar, GrammarSource
from .json_schema import JsonSchema
from .regex import Regex


def told_output(source: GrammarSource[Any] | Constraint | None) -> dict[str, Any] | None:
    """What holds an output; None for nothing. Raises InvalidInput for what runs in this process."""
    match source:
        case None:
            return None
        case Typed(schema=schema, words=True):
            return {"type": "regex", "pattern": _one_of(_choices(schema) or ()).pattern}
        case Typed(schema=schema) | JsonSchema(schema=schema):
            return {"type": "json_schema", "schema": schema}
        case Regex(pattern=pattern):
            return {"type": "regex", "pattern": pattern}
        case Thought():
            return {"type": "thinking", "thinking": source.told, "output": told_output(source.held)}
        case Grammar(lark=lark):
            return {"type": "grammar", "lark": lark}
    held = getattr(source, "held", None)  # the text of a value that another grammar holds
    if isinstance(held, GrammarSource):
        return told_output(held)
    raise InvalidInput(f"output is {shown(source)}, which cannot go to a server; pass a type or a grammar")
