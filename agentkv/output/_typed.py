"""Outputs of Python types: pydantic derives their JSON schema and validates their text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from agentkv_runtime.formats.json_style import unwritable_text
from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from .._types.errors import InvalidInput, OutputInvalid
from .._types.show import preview, reason_of
from ._schema_checks import endless_reference, inexact_number, refused_keyword, subschemas
from .grammar import GrammarSource
from .json_schema import cut_json, grammar_of
from .regex import Regex

if TYPE_CHECKING:
    from typing_extensions import TypeForm


# The formats that llguidance knows.
FORMATS = frozenset(["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"])


class PlainSchema(GenerateJsonSchema):
    """Schema generator with one spelling for each value, where pydantic accepts several."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """A number: the string that pydantic accepts as well could be any text."""
        number: JsonSchemaValue = super().decimal_schema(schema)["anyOf"][0]
        return number

    def encode_default(self, dft: Any) -> Any:
        """The default as the schema's numbers have it; pydantic writes Decimals as text."""
        return super().encode_default(_with_numbers(dft))

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """An `anyOf`: tags distinguish the choices, but llguidance does not always recognise that."""
        made = super().tagged_union_schema(schema)
        return {"anyOf": made["oneOf"]}


def _with_numbers(value: Any) -> Any:
    match value:
        case Decimal() if value.is_finite():
            return int(value) if value == value.to_integral_value() else float(value)
        case list() | tuple():
            return [_with_numbers(item) for item in value]
        case dict():
            return {key: _with_numbers(item) for key, item in value.items()}
    return value


class GrammarJsonSchema(PlainSchema):
    """Schema generator for grammars. Pydantic checks what these schemas leave out when it validates the value."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def generate(self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        """The schema without additional keys and without formats that llguidance does not know."""
        made = super().generate(schema, mode)
        for inner in subschemas(made):
            if "properties" in inner:
                inner.setdefault("additionalProperties", False)
            if inner.get("format") not in FORMATS:
                inner.pop("format", None)
        return made

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        """An array without `uniqueItems`: duplicates merge in the set."""
        return _without("uniqueItems", super().set_schema(schema))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        """An array without `uniqueItems`: duplicates merge in the set."""
        return _without("uniqueItems", super().frozenset_schema(schema))


def _without(key: str, schema: JsonSchemaValue) -> JsonSchemaValue:
    return {name: value for name, value in schema.items() if name != key}


Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Typed(GrammarSource[Out]):
    """JSON of a value of a type; a bare word where the type is a choice of strings.

    Attributes:
        text: the grammar.
        schema: the JSON schema of the type.
        words: whether the text is a bare string, without quotes.
        adapter: pydantic's validator of the type.
    """

    text: str
    schema: dict[str, Any] = field(compare=False, repr=False)
    words: bool = field(compare=False, repr=False)
    adapter: TypeAdapter[Out] = field(compare=False, repr=False)

    @classmethod
    def of(cls, kind: TypeForm[Out]) -> Typed[Out]:
        """Derives the grammar of a type. Raises InvalidInput if it has no JSON schema that a grammar can enforce."""
        try:
            adapter: TypeAdapter[Out] = TypeAdapter(kind)
            schema = adapter.json_schema(schema_generator=GrammarJsonSchema)
        except Exception as error:  # pydantic's own, and any error of a type's hooks
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
        """The grammar in llguidance's form."""
        return self.text

    def read(self, text: str) -> Out:
        """Parses a text. Raises OutputIncomplete for truncated JSON, OutputInvalid for values that pydantic refuses."""
        try:
            return self.adapter.validate_json(json.dumps(text) if self.words else text)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False)
        # Not chained: pydantic's error holds every frame below it, where the garbage collector does not see them.
        if faults[0]["type"] == "json_invalid" and "recursion" not in faults[0]["msg"]:
            raise cut_json(faults[0]["msg"])
        said = "; ".join(_said(fault["loc"], reason_of(fault)) for fault in faults)
        raise OutputInvalid(f"the output {preview(text)} is refused: {said}", text)


def _named(kind: object) -> str:
    return f"the type {kind.__name__}" if isinstance(kind, type) else preview(kind)


def _choices(schema: dict[str, Any]) -> list[str] | None:
    """Strings that a schema allows; None where it is not a choice of strings."""
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return choices if choices and all(isinstance(choice, str) for choice in choices) else None


def _one_of(words: Sequence[str]) -> Regex:
    return Regex("|".join("".join(f"\\x{{{ord(letter):x}}}" for letter in word) for word in words))


def _said(where: tuple[int | str, ...], what: str) -> str:
    return f"{'.'.join(map(str, where))}: {what}" if where else what
