"""Values of Python types: pydantic's JSON schema describes them, its validation makes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from agentkv_runtime.formats.json_style import unwritable_text
from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from .._types.errors import InvalidInput, OutputInvalid
from .._types.show import shown
from ._schema_checks import endless_reference, inexact_number, refused_keyword, subschemas
from .grammar import GrammarSource
from .json_schema import cut_json, grammar_of
from .regex import Regex

if TYPE_CHECKING:
    from typing_extensions import TypeForm


# The formats that llguidance knows.
FORMATS = frozenset(["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"])


class PlainSchema(GenerateJsonSchema):
    """With one spelling for each value, where pydantic takes several."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """A number; the string that pydantic would take as well may hold anything."""
        number: JsonSchemaValue = super().decimal_schema(schema)["anyOf"][0]
        return number

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Any of the choices: their tags tell them apart, which llguidance does not see in all of them."""
        made = super().tagged_union_schema(schema)
        return {"anyOf": made["oneOf"]}


class HeldSchema(PlainSchema):
    """What these schemas leave out, pydantic finds when it validates the value."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def generate(self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        """The whole schema. Keys that a model ignores are not written."""
        made = super().generate(schema, mode)
        for inner in subschemas(made):
            if "properties" in inner:
                inner.setdefault("additionalProperties", False)
            if inner.get("format") not in FORMATS:
                inner.pop("format", None)
        return made

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        """An array; what it has twice, the set has once."""
        return _without("uniqueItems", super().set_schema(schema))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        """As `set_schema`."""
        return _without("uniqueItems", super().frozenset_schema(schema))


def _without(key: str, schema: JsonSchemaValue) -> JsonSchemaValue:
    return {name: value for name, value in schema.items() if name != key}


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
