"""Outputs that a JSON Schema describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentkv_runtime.formats.json_style import BOUNDED_SPACE, as_meant, json_style, unwritable_text

from .._types.errors import InvalidInput, OutputIncomplete, OutputInvalid
from .._types.show import preview, safe_str
from ._schema_checks import endless_reference, inexact_number, refused_keyword, repeatable_keys
from .grammar import GrammarSource


@dataclass(frozen=True, slots=True, init=False)
class JsonSchema(GrammarSource[Any]):
    """JSON that a JSON Schema (2020-12) describes: `generate(output=kv.JsonSchema({"type": "integer"}))`.

    Keys come in the order of `properties`, with the separators `", "` and `": "`. An object without
    `additionalProperties: false` may have further keys. The value is the result of `json.loads`.

    Attributes:
        text: the schema as JSON.

    Raises:
        InvalidInput: no JSON Schema, or one that a grammar cannot hold; it names the keyword (`uniqueItems`, `not`,
            `if`, `contains`, `propertyNames`, `dependent...`, `unevaluated...`, `oneOf` where the options may overlap,
            a `$ref` that leads back to itself only, a `format` other than date-time, date, time, duration, email,
            hostname, ipv4, ipv6, uri and uuid).
    """

    text: str

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        object.__setattr__(self, "text", _json_of(schema))
        fault = unheld(self.schema)
        if fault:
            raise InvalidInput(f"a grammar cannot hold this schema: {fault}; take that out, and check it afterwards")

    @property
    def schema(self) -> dict[str, Any]:
        """The schema, as a copy."""
        schema: dict[str, Any] = json.loads(self.text)
        return schema

    @property
    def grammar(self) -> str:
        """The schema in llguidance's form."""
        return grammar_of(self.schema)

    def read(self, text: str) -> Any:
        """Parses the JSON. Raises OutputIncomplete for truncated text, OutputInvalid where it nests too deeply."""
        try:
            return json.loads(text)
        except RecursionError:
            raise OutputInvalid(f"the output {preview(text)} is refused: it is nested too deeply", text) from None
        except ValueError as error:
            raise cut_json(str(error)) from None


def grammar_of(schema: dict[str, Any]) -> str:
    """A schema in llguidance's form, in our style unless it has its own `x-guidance`."""
    return json.dumps({"grammars": [{"json_schema": styled(schema, json_style(schema))}]})


def unheld(schema: dict[str, Any]) -> str | None:
    """Fault for which a grammar cannot enforce a schema, with its keyword; None where it can enforce all."""
    return (
        repeatable_keys(schema)
        or inexact_number(schema)
        or refused_keyword(grammar_of(schema))
        or unwritable_text(schema)
        or endless_reference(schema)  # last: it takes for granted that the schema is one
    )


def styled(schema: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The schema with an `x-guidance` of these options; its own options take precedence."""
    style = schema.get("x-guidance", {})
    if isinstance(style, dict):  # llguidance reports the fault of another
        style = options | (BOUNDED_SPACE if style.get("whitespace_flexible") else {}) | style
    return {**as_meant(schema), "x-guidance": style}


def cut_json(fault: str) -> OutputIncomplete:
    """Makes the error for truncated JSON, which under a grammar only a stop string can cause."""
    return OutputIncomplete(f"the output is no whole JSON: {fault}; leave out the stop string that cut it")


def _json_of(schema: object) -> str:
    if schema is True:
        return "{}"
    if isinstance(schema, type):
        raise InvalidInput(
            f"schema is the type {schema.__name__}, but a JSON Schema is a mapping; pass the type as output"
        )
    if not isinstance(schema, Mapping):
        raise InvalidInput(
            f"schema is {preview(schema)}, but a JSON Schema is a mapping, such as {{'type': 'integer'}}"
        )
    try:
        text = json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
        text.encode()
    except Exception as error:  # a mapping's methods may raise anything
        raise InvalidInput(f"schema is {preview(schema)}, which is not JSON: {safe_str(error)}") from None
    return text
