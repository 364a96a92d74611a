"""Values of Python types: described by pydantic's JSON schema, made by its validation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from agentkv_runtime.formats.json_style import unwritable_text
from pydantic import TypeAdapter, ValidationError

from .._errors import InvalidInput, OutputInvalid
from .._shown import shown
from ._endless import endless_reference
from ._held_schema import HeldSchema
from ._schema_checks import inexact_number, refused_keyword
from .grammar import GrammarSource
from .json_schema import cut_json, grammar_of
from .regex import Regex

if TYPE_CHECKING:
    from typing_extensions import TypeForm

Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Typed(GrammarSource[Out]):
    """JSON that becomes a value of a type; a bare word where the type is a choice of strings.

    Attributes:
        text: the grammar.
        schema: the JSON schema of the type.
        words: is the text a string of its own, without quotes?
        adapter: pydantic's.
    """

    text: str
    schema: dict[str, Any] = field(compare=False, repr=False)
    words: bool = field(compare=False, repr=False)
    adapter: TypeAdapter[Out] = field(compare=False, repr=False)

    @classmethod
    def of(cls, kind: TypeForm[Out]) -> Typed[Out]:
        """Raises InvalidInput for what pydantic has no JSON for, and for a schema that a grammar cannot hold."""
        try:
            adapter: TypeAdapter[Out] = TypeAdapter(kind)
            schema = adapter.json_schema(schema_generator=HeldSchema)
        except Exception as error:  # pydantic's own, and whatever a type's hooks raise
            reason = str(error).split("\n")[0].partition(". Set `arbitrary")[0]
            raise InvalidInput(
                f"output is {_named(kind)}, of which pydantic makes no JSON: {reason}; pass a pydantic model, a "
                "dataclass, a TypedDict, a Literal, an Enum, a type such as list[int], kv.Regex, kv.JsonSchema, "
                "kv.Grammar or a kv.Constraint"
            ) from error
        words = _choices(schema)
        grammar = grammar_of(schema) if words is None else _one_of(words).grammar
        fault = inexact_number(schema) or refused_keyword(grammar) or unwritable_text(schema)
        fault = fault or endless_reference(schema)
        if fault:
            raise InvalidInput(f"output is {_named(kind)}, whose schema a grammar cannot hold: {fault}")
        return cls(grammar, schema, words is not None, adapter)

    @property
    def grammar(self) -> str:
        """What llguidance takes."""
        return self.text

    def read(self, text: str) -> Out:
        """The value of a text. Raises OutputIncomplete for half a JSON, OutputInvalid for what pydantic refuses."""
        try:
            return self.adapter.validate_json(json.dumps(text) if self.words else text)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False)
        # Not chained: pydantic's error holds every frame below it, where the garbage collector does not see them.
        if faults[0]["type"] == "json_invalid" and "recursion" not in faults[0]["msg"]:
            raise cut_json(faults[0]["msg"])
        said = "; ".join(_said(fault["loc"], fault["msg"]) for fault in faults)
        raise OutputInvalid(f"the output {shown(text)} is refused: {said}", text)


def _named(kind: object) -> str:
    return f"the type {kind.__name__}" if isinstance(kind, type) else shown(kind)


def _choices(schema: dict[str, Any]) -> list[str] | None:
    """The strings that a schema allows, where it is a choice of strings."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return choices if choices and all(isinstance(choice, str) for choice in choices) else None


def _one_of(words: Sequence[str]) -> Regex:
    return Regex("|".join("".join(f"\\x{{{ord(letter):x}}}" for letter in word) for word in words))


def _said(where: tuple[int | str, ...], what: str) -> str:
    return f"{'.'.join(map(str, where))}: {what}" if where else what
