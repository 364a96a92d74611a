"""Meaning of an `output=` argument: a constraint and a parser, and their JSON for a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

from pydantic import BaseModel

from .._types.errors import AgentKVError, InvalidInput, OutputIncomplete
from .._types.show import shown
from ._thought import Thought
from ._typed import Typed, _choices, _one_of
from .constraint import Constraint
from .grammar import Grammar, GrammarSource
from .json_schema import JsonSchema
from .regex import Regex

if TYPE_CHECKING:
    from .._types.results import FinishReason


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


Out = TypeVar("Out")

_COMPLETE = ("eos", "stop")


@dataclass(frozen=True, slots=True)
class Asked(Generic[Out]):
    """What holds the tokens of an output, None for nothing, and what makes a value of its text."""

    constraint: GrammarSource[Out] | Constraint | None
    read: Callable[[str], Out]

    def outcome(self, text: Callable[[], str], reason: FinishReason) -> tuple[Out | None, Exception | None]:
        """The value of the text that a generation came to, or why there is none."""
        if reason not in _COMPLETE:
            return None, OutputIncomplete(
                f"the output is not complete: the generation ended with {reason!r}; roll back and allow more "
                "tokens, or generate again with the same `output` to go on with it (not over vLLM); `text` is what "
                "there is of it"
            )
        try:
            return self.read(text()), None
        except AgentKVError as error:
            return None, error.with_traceback(None)  # whoever keeps the generation need not keep these frames
        except Exception as error:  # a bug in a validator of the user's
            return None, error


def asked(output: object) -> Asked[Any]:
    """What a type, a grammar or a constraint of the user's asks for; `str` is plain text. Raises InvalidInput."""
    if output is str:
        return Asked(None, str)
    if _is_constraint(output):
        return Asked(output, str)
    source = output if isinstance(output, GrammarSource) else _typed(output)
    return Asked(source, source.read)


def _is_constraint(output: object) -> TypeGuard[Constraint]:
    try:
        return isinstance(output, Constraint) and not isinstance(output, type)
    except Exception:  # it has a `done`, which raises: so will its generation
        return True


def _typed(output: Any) -> Typed[Any]:
    # What pydantic would take for something that it is not: names, core schemas, functions, our own classes.
    ours = isinstance(output, type) and issubclass(output, GrammarSource)
    if ours or output is None or isinstance(output, str | bytes | Mapping) or inspect.isroutine(output):
        raise InvalidInput(
            f"output is {shown(output)}, but it must be a type, kv.Regex, kv.JsonSchema (around a schema), kv.Grammar "
            "or a kv.Constraint; for plain text leave it out"
        )
    if isinstance(output, BaseModel) or (is_dataclass(output) and not isinstance(output, type)):
        raise InvalidInput(f"output is {shown(output)}, but it must be a type; pass {type(output).__name__} itself")
    try:
        return _known(output)
    except TypeError:  # not hashable
        return Typed.of(output)


@lru_cache(maxsize=128, typed=True)
def _known(output: Any) -> Typed[Any]:
    return Typed.of(output)
