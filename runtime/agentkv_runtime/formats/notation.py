"""Notations of values other than JSON: they write values, and make the grammar of a JSON schema's values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentkv_runtime.formats.content import MARKS
from agentkv_runtime.formats.json_style import ONE_SPELLING
from agentkv_runtime.formats.lark import Lark

__all__ = ["PYTHON", "Notation", "Schema"]

Schema = Mapping[str, Any]

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRINGS = ("minLength", "maxLength", "pattern", "format")
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")


@dataclass(frozen=True)
class Notation:
    """A notation of values. Its grammars follow types, enums, members and items of a schema, and no other keywords."""

    true: str
    false: str
    null: str
    comma: str
    colon: str
    """Text between a key and its value in an object."""
    quote: str = ""
    """Delimiter of strings, which are written unescaped; empty for strings as in JSON."""
    quoted_keys: bool = True
    never: tuple[str, ...] = ()
    """Texts that no string may contain, as they would end the call."""

    def written(self, value: Any) -> str:
        """Writes a value."""
        match value:
            case bool() | None:
                return {True: self.true, False: self.false, None: self.null}[value]
            case str():
                return self.quote + value + self.quote if self.quote else json.dumps(value, ensure_ascii=False)
            case list() | tuple():
                return f"[{self.comma.join(map(self.written, value))}]"
            case Mapping():
                members = (self._key(key) + self.written(item) for key, item in value.items())
                return f"{{{self.comma.join(members)}}}"
        return json.dumps(value)

    def value(self, lark: Lark, schema: Any, root: Schema) -> str:
        """Grammar expression of any value of a schema; references are relative to `root`."""
        return lark.either("value", self._choices(lark, schema, root))

    def members(self, lark: Lark, schema: Schema, root: Schema, key: Callable[[str], str]) -> str:
        """Grammar expression, perhaps empty, of an object's members in the order of the schema.

        `key` writes a member's name and the text after it.
        """
        required = set(schema.get("required", ()))
        spelled = [
            (name in required, f"{lark.text(key(name))} {self.value(lark, part, root)}")
            for name, part in schema.get("properties", {}).items()
        ]
        comma, choices = lark.text(self.comma), []
        for first, (is_required, member) in enumerate(spelled):
            rest = [f"{comma} {other}" if needed else f"({comma} {other})?" for needed, other in spelled[first + 1 :]]
            choices.append(" ".join([member, *rest]))
            if is_required:
                break
        else:
            choices.append('""')
        return lark.either("members", choices)

    def _choices(self, lark: Lark, schema: Any, root: Schema) -> Iterator[str]:
        schema = schema if isinstance(schema, Mapping) else {}
        if "$ref" in schema:
            yield lark.once(str(schema["$ref"]), lambda: self.value(lark, _resolved(schema["$ref"], root), root))
        elif "const" in schema or "enum" in schema:
            yield from (lark.text(self.written(value)) for value in schema.get("enum", [schema.get("const")]))
        elif "anyOf" in schema or "oneOf" in schema:
            for choice in schema.get("anyOf", schema.get("oneOf")):
                yield from self._choices(lark, choice, root)
        else:
            types = schema.get("type", _TYPES)
            for name in [types] if isinstance(types, str) else types:
                yield self._of_type(name, lark, schema, root)

    def _of_type(self, name: str, lark: Lark, schema: Schema, root: Schema) -> str:
        if name == "object":
            return f"{lark.text('{')} {self._object(lark, schema, root)} {lark.text('}')}"
        if name == "array":
            item = lark.once(f"items {schema.get('items')}", lambda: self.value(lark, schema.get("items"), root))
            least, most = schema.get("minItems", 0), schema.get("maxItems", "")
            more = f"({lark.text(self.comma)} {item}){{{max(least - 1, 0)},{'' if most == '' else max(most - 1, 0)}}}"
            items = "" if most == 0 else f"{item} {more}" if least else f"({item} {more})?"
            return f"{lark.text('[')} {items} {lark.text(']')}"
        if name == "boolean":
            return f"{lark.text(self.true)} | {lark.text(self.false)}"
        if name == "null":
            return lark.text(self.null)
        if name == "string" and self.quote:
            return f"{lark.text(self.quote)} {lark.text_up_to(self.quote, (*MARKS, *self.never))}"
        bounds = {key: schema[key] for key in (_STRINGS if name == "string" else _NUMBERS) if key in schema}
        return lark.json({"type": name, **bounds}, **ONE_SPELLING)  # \ud83d\ude00 is two characters to Python

    def _object(self, lark: Lark, schema: Schema, root: Schema) -> str:
        if schema.get("properties"):
            return self.members(lark, schema, root, self._key)
        if schema.get("additionalProperties") is False:
            return ""
        key = lark.json({"type": "string"}) if self.quoted_keys else lark.rule("KEY", r"/\w+/")
        item = lark.once("any value", lambda: self.value(lark, schema.get("additionalProperties"), root))
        member = f"{key} {lark.text(self.colon)} {item}"
        return f"({member} ({lark.text(self.comma)} {member})*)?"

    def _key(self, key: str) -> str:
        return (json.dumps(key, ensure_ascii=False) if self.quoted_keys else key) + self.colon


def _resolved(reference: str, root: Schema) -> Any:
    """The schema that a reference points at; the empty schema, which allows any value, if there is none."""
    found: Any = root
    for part in reference.lstrip("#").strip("/").split("/"):
        if part:
            found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, Mapping) else {}
    return found


PYTHON = Notation("True", "False", "None", ", ", ": ")
