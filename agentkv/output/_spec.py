"""Meaning of an `output=` argument: a constraint and a parser, and their JSON for a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

from pydantic import BaseModel

from .._types.checks import call_it
from .._types.errors import AgentKVError, InvalidInput, OutputIncomplete
from .._types.show import preview
from ._thought import Thought
from ._typed import Typed, _choices, _one_of
from .constraint import Constraint
from .grammar import Grammar, GrammarSource
from .json_schema import JsonSchema
from .regex import Regex

if TYPE_CHECKING:
    from .._types.results import FinishReason


def output_to_json(source: GrammarSource[Any] | Constraint | None) -> dict[str, Any] | None:
    """JSON of a constraint for a server; None for no constraint. Raises InvalidInput for a user's own Constraint."""
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
            return {"type": "thinking", "thinking": source.to_json, "output": output_to_json(source.constraint)}
        case Grammar(lark=lark):
            return {"type": "grammar", "lark": lark}
    held = getattr(source, "held", None)  # text of a value under another grammar
    if isinstance(held, GrammarSource):
        return output_to_json(held)
    raise InvalidInput(f"output is {preview(source)}, which cannot go to a server; pass a type or a grammar")


Out = TypeVar("Out")

_COMPLETE = ("eos", "stop")


@dataclass(frozen=True, slots=True)
class OutputSpec(Generic[Out]):
    """Constraint on an output, None for plain text, and the parser of its text."""

    constraint: GrammarSource[Out] | Constraint | None
    read: Callable[[str], Out]

    def outcome(self, text: Callable[[], str], reason: FinishReason) -> tuple[Out | None, Exception | None]:
        """The value of a generation's text, or the error for which there is none. Calls `text` only if complete."""
        if reason not in _COMPLETE:
            return None, OutputIncomplete(
                f"the output is not complete: the generation ended with {reason!r}; roll back and allow more "
                "tokens, or generate again with the same `output` to go on with it (not over vLLM); `text` is what "
                "there is of it"
            )
        try:
            return self.read(text()), None
        except AgentKVError as error:
            return None, error.with_traceback(None)  # so that the generation does not keep these frames alive
        except Exception as error:  # a bug in a validator of the user's
            return None, error


def output_spec(output: object) -> OutputSpec[Any]:
    """Resolves an `output=` argument (type, grammar or constraint) into a constraint and a parser; `str` is plain text.

    Raises InvalidInput.
    """
    if output is str:
        return OutputSpec(None, str)
    if _is_constraint(output):
        return OutputSpec(output, str)
    source = output if isinstance(output, GrammarSource) else _typed(output)
    return OutputSpec(source, source.read)


def _is_constraint(output: object) -> TypeGuard[Constraint]:
    try:
        return isinstance(output, Constraint) and not isinstance(output, type)
    except Exception:  # it has a `done`, which raises: so will its generation
        return True


def _typed(output: Any) -> Typed[Any]:
    # Values that pydantic would mistake for types: names, core schemas, functions, our own classes.
    ours = isinstance(output, type) and issubclass(output, GrammarSource)
    if ours or output is None or isinstance(output, str | bytes | Mapping) or inspect.isroutine(output):
        raise InvalidInput(
            f"output is {preview(output)}, but it must be a type, kv.Regex, kv.JsonSchema (around a schema), kv.Grammar"
            f" or a kv.Constraint; for plain text leave it out{call_it(output)}"
        )
    if isinstance(output, BaseModel) or (is_dataclass(output) and not isinstance(output, type)):
        raise InvalidInput(f"output is {preview(output)}, but it must be a type; pass {type(output).__name__} itself")
    try:
        return _known(output)
    except TypeError:  # not hashable
        return Typed.of(output)


@lru_cache(maxsize=128, typed=True)
def _known(output: Any) -> Typed[Any]:
    return Typed.of(output)
