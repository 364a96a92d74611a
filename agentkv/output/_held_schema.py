"""Pydantic's JSON schemas as a grammar can hold them."""

from __future__ import annotations

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from ._subschemas import subschemas

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
