"""Recognition of a conversation's tools in calls of any spelling."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agentkv_runtime.formats.casts import cast_arguments, schemas_of
from agentkv_runtime.formats.loose_values import loose_value
from agentkv_runtime.formats.parsed import ParsedCall
from agentkv_runtime.formats.values import check_value

__all__ = ["ARGUMENT_KEYS", "LIST_KEYS", "NAME_KEYS", "KnownTools"]

NAME_KEYS = ("name", "tool", "tool_name", "function_name", "function", "action")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "params", "tool_input", "action_input", "kwargs")
LIST_KEYS = ("tool_calls", "calls", "function_calls")
_APART = re.compile(r"[\W_]+")
# Keywords of JSON schemas, which small models copy from a definition beside the arguments.
_SCHEMA_KEYWORDS = frozenset(
    {"$schema", "additionalProperties", "description", "properties", "required", "title", "type"}
)


class KnownTools:
    """Tools by name, with the schemas of their arguments."""

    def __init__(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        self._schemas = schemas_of(definitions)
        self._parameters = {
            function["name"]: function.get("parameters") or {}
            for function in (definition.get("function", definition) for definition in definitions)
            if isinstance(function, Mapping) and function.get("name") in self._schemas
        }
        plain = Counter(map(_plain, self._schemas))
        self._alike = {_plain(name): name for name in self._schemas if _plain(name) != "_" and plain[_plain(name)] == 1}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tools."""
        return tuple(self._schemas)

    def name_of(self, written: object) -> str | None:
        """Name of the tool that `written` means, or None.

        Case and separators between words may differ, unless several tools would then match.
        """
        if not isinstance(written, str) or written in self._schemas:
            return written if isinstance(written, str) else None
        return self._alike.get(_plain(written.removeprefix("functions.")))

    def call(self, name: object, arguments: object, raw: str, dress: str) -> ParsedCall | None:
        """A call of a known tool; None for other names, and for arguments that no message can contain."""
        known = self.name_of(name)
        if known is None or not isinstance(arguments, Mapping):
            return None
        try:
            made = cast_arguments(self._without_keywords(known, arguments), self._schemas[known])
            check_value(made)
        except (ValueError, RecursionError):
            return None
        return ParsedCall(known, made, raw, None, dress)

    def _without_keywords(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments but for keywords of schemas that are no parameters of the tool."""
        properties = self._parameters[name].get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return arguments
        copied = _SCHEMA_KEYWORDS - properties.keys()
        return {key: value for key, value in arguments.items() if key not in copied}

    def calls(self, value: object, raw: str, dress: str) -> list[ParsedCall]:
        """Calls in a JSON value of any usual shape; empty if any part of it is no call."""
        try:
            return self._calls(value, raw, dress)
        except RecursionError:
            return []

    def _calls(self, value: object, raw: str, dress: str) -> list[ParsedCall]:
        if isinstance(value, Sequence) and not isinstance(value, str):
            each = [self._calls(item, raw, dress) for item in value]
            return [call for calls in each for call in calls] if all(each) else []
        if not isinstance(value, Mapping):
            return []
        for key in LIST_KEYS:
            if isinstance(value.get(key), list):
                return self._calls(value[key], raw, dress)
        if isinstance(value.get("function"), Mapping):
            return self._calls(value["function"], raw, dress)
        call = self._named(value, raw, dress) or self._keyed(value, raw, dress)
        return [call] if call else []

    def fits(self, call: ParsedCall) -> bool:
        """Whether the names of a call's arguments agree with its tool's schema."""
        parameters, arguments = self._parameters[call.name], call.arguments or {}
        properties, required = parameters.get("properties"), parameters.get("required")
        known = properties if isinstance(properties, Mapping) else {}
        needed = required if isinstance(required, list) else []
        free = not known or bool(parameters.get("additionalProperties"))
        return all(name in arguments for name in needed) and (free or all(name in known for name in arguments))

    def _named(self, value: Mapping[str, Any], raw: str, dress: str) -> ParsedCall | None:
        """Reads `{"name": "weather", "arguments": {...}}`, with any of the known keys."""
        name = next((value[key] for key in NAME_KEYS if isinstance(value.get(key), str)), None)
        given: object = next((value[key] for key in ARGUMENT_KEYS if key in value), {})
        return self.call(name, _object(given), raw, dress)

    def _keyed(self, value: Mapping[str, Any], raw: str, dress: str) -> ParsedCall | None:
        """Reads `{"weather": {...}}`."""
        if len(value) != 1:
            return None
        ((name, arguments),) = value.items()
        return self.call(name, arguments, raw, dress) if name in self._schemas else None


def _plain(name: str) -> str:
    return _APART.sub("_", name).casefold()


def _object(value: object) -> object:
    """Decodes arguments that were encoded twice; None is no arguments."""
    if not isinstance(value, str):
        return {} if value is None else value
    return loose_value(value) if value.strip() else {}
