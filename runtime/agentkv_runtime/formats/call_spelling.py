"""Spellings of one call, without the markers around it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentkv_runtime.formats.lark import Lark
from agentkv_runtime.formats.notation import PYTHON, Notation

__all__ = ["CallSpelling", "JsonCall", "NamedJsonCall", "NotedCall", "PythonCall", "TaggedCall", "Tool", "tool_of"]


@dataclass(frozen=True)
class Tool:
    """A tool that may be called: its name, and the schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


def tool_of(definition: Mapping[str, Any]) -> Tool:
    """The Tool of a definition, with or without `function` around it.

    Its schema forbids arguments that it does not name, unless the definition allows them.
    """
    function = definition.get("function", definition)
    parameters = dict(function.get("parameters") or {})
    if not parameters.keys() & {"$ref", "anyOf", "oneOf", "allOf"}:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False} | parameters
    return Tool(function["name"], parameters)


class CallSpelling(ABC):
    """Spelling of one call, without the markers around it."""

    @abstractmethod
    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Writes a call as the model does."""

    @abstractmethod
    def grammar(self, lark: Lark, tool: Tool, before: str) -> str:
        """Grammar expression of any call of a tool, preceded by the text `before`."""


@dataclass(frozen=True)
class JsonCall(CallSpelling):
    """`{"name": "weather", "arguments": {"city": "Oslo"}}`"""

    name: str = "name"
    arguments: str = "arguments"

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:  # noqa: D102
        return json.dumps({self.name: name, self.arguments: arguments}, ensure_ascii=False)

    def grammar(self, lark: Lark, tool: Tool, before: str) -> str:  # noqa: D102
        head = f"{{{json.dumps(self.name)}: {json.dumps(tool.name, ensure_ascii=False)}, {json.dumps(self.arguments)}: "
        return f"{lark.text(before + head)} {lark.json(tool.parameters)} {lark.text('}')}"


@dataclass(frozen=True)
class NamedJsonCall(CallSpelling):
    """Name, the text `between`, and arguments as JSON."""

    between: str

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:  # noqa: D102
        return name + self.between + json.dumps(arguments, ensure_ascii=False)

    def grammar(self, lark: Lark, tool: Tool, before: str) -> str:  # noqa: D102
        return f"{lark.text(before + tool.name + self.between)} {lark.json(tool.parameters)}"


@dataclass(frozen=True)
class PythonCall(CallSpelling):
    """`weather(city="Oslo", days=2)`"""

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:  # noqa: D102
        return f"{name}({', '.join(f'{key}={PYTHON.written(value)}' for key, value in arguments.items())})"

    def grammar(self, lark: Lark, tool: Tool, before: str) -> str:  # noqa: D102
        members = PYTHON.members(lark, tool.parameters, tool.parameters, "{}=".format)
        return f"{lark.text(before + tool.name + '(')} {members} {lark.text(')')}"


@dataclass(frozen=True)
class NotedCall(CallSpelling):
    """Name, and arguments as an object in a notation of the model's own."""

    notation: Notation

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:  # noqa: D102
        return name + self.notation.written(arguments)

    def grammar(self, lark: Lark, tool: Tool, before: str) -> str:  # noqa: D102
        arguments = {"properties": {}, **tool.parameters, "type": "object"}
        return f"{lark.text(before + tool.name)} {self.notation.value(lark, arguments, tool.parameters)}"


@dataclass(frozen=True)
class TaggedCall(CallSpelling):
    """Name, and every argument between tags: strings unescaped, other values as JSON.

    In the fields, `{}` stands for the name of the tool or of the argument.
    """

    head: str
    before: str
    after: str
    foot: str
    never: tuple[str, ...] = ()
    """Texts that no string may contain, as they would end the call."""

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:  # noqa: D102
        texts = {key: item if isinstance(item, str) else json.dumps(item) for key, item in arguments.items()}
        inner = "".join(self.before.format(key) + text + self.after for key, text in texts.items())
        return self.head.format(name) + inner + self.foot

    def grammar(self, lark: Lark, tool: Tool, before: str) -> str:  # noqa: D102
        required, parts = set(tool.parameters.get("required", ())), [lark.text(before + self.head.format(tool.name))]
        for key, schema in tool.parameters.get("properties", {}).items():
            argument = f"{lark.text(self.before.format(key))} {self._value(lark, schema, tool)}"
            parts.append(argument if key in required else f"({argument})?")
        return " ".join([*parts, lark.text(self.foot)])

    def _value(self, lark: Lark, schema: Any, tool: Tool) -> str:
        """Grammar expression of a value and its closing tag."""
        texts = schema.get("enum") if isinstance(schema, Mapping) else None
        if texts and all(isinstance(text, str) for text in texts):
            return f"({' | '.join(map(lark.text, texts))}) {lark.text(self.after)}"
        if not isinstance(schema, Mapping) or schema.get("type", "string") == "string":
            return lark.text_up_to(self.after, self.never)
        definitions = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
        return f"{lark.json({**definitions, **schema})} {lark.text(self.after)}"
