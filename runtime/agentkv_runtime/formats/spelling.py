"""How a model spells its calls: written out, for what is made up, and as a grammar, for what it is about to write."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.lark import Lark

__all__ = ["CallSpelling", "Calls", "JsonCall", "NamedJsonCall", "NoCalls", "Spelling", "Tool", "Wanted", "tool_of"]

_UNKNOWN = "how this model spells calls is not known. Name the format that it was trained on, or give one of your own"


@dataclass(frozen=True)
class Tool:
    """A tool that may be called: its name, and the schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


def tool_of(definition: Mapping[str, Any]) -> Tool:
    """Of a definition, with `function` around it or without. Arguments that the schema does not name are left out,
    unless it says that there may be some."""
    function = definition.get("function", definition)
    parameters = dict(function.get("parameters") or {})
    if not parameters.keys() & {"$ref", "anyOf", "oneOf", "allOf"}:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False} | parameters
    return Tool(function["name"], parameters)


class CallSpelling(ABC):
    """One call, without what is around it."""

    @abstractmethod
    def written(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the model writes it."""

    @abstractmethod
    def grammar(self, lark: Lark, tool: Tool) -> str:
        """Any call of a tool: an expression."""


@dataclass(frozen=True)
class JsonCall(CallSpelling):
    """`{"name": "weather", "arguments": {"city": "Oslo"}}`"""

    name: str = "name"
    arguments: str = "arguments"

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:  # noqa: D102
        return json.dumps({self.name: name, self.arguments: arguments}, ensure_ascii=False)

    def grammar(self, lark: Lark, tool: Tool) -> str:  # noqa: D102
        head = f"{{{json.dumps(self.name)}: {json.dumps(tool.name, ensure_ascii=False)}, {json.dumps(self.arguments)}: "
        return f"{lark.text(head)} {lark.json(tool.parameters)} {lark.text('}')}"


@dataclass(frozen=True)
class NamedJsonCall(CallSpelling):
    """The name, something between, and the arguments as JSON."""

    between: str

    def written(self, name: str, arguments: Mapping[str, Any]) -> str:  # noqa: D102
        return name + self.between + json.dumps(arguments, ensure_ascii=False)

    def grammar(self, lark: Lark, tool: Tool) -> str:  # noqa: D102
        return f"{lark.text(tool.name + self.between)} {lark.json(tool.parameters)}"


@dataclass(frozen=True)
class Wanted:
    """What the next message may be."""

    tools: Sequence[Tool] = ()
    """That may be called."""
    text: bool = True
    """May it make no calls?"""
    output: Mapping[str, Any] | None = None
    """The JSON schema of a message that makes none; None for free text."""
    parallel: bool = True
    """May it make several?"""
    thinking: tuple[str, str] | None = None
    """What is around the reasoning, for models that reason."""
    in_reasoning: bool = False
    """Has the prompt opened the reasoning?"""


class Spelling(ABC):
    """The calls of a message, and where in it they stand."""

    opener: str = ""
    """What begins the calls, wherever in the text it is written; empty where only a whole message can be calls."""
    begins: str = ""
    """Without an opener: the pattern of how a message begins that is calls."""

    @abstractmethod
    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls as the model writes them."""

    @abstractmethod
    def calls(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        """One call, or several if `parallel`, after `opener`: an expression."""

    def message(self, lark: Lark, wanted: Wanted) -> str:
        """The message: an expression."""
        controls = [*(wanted.thinking or ())[:1], *([self.opener] if self.opener else [])]
        choices = []
        if wanted.tools:
            calls = self.calls(lark, wanted.tools, parallel=wanted.parallel)
            free = wanted.text and wanted.output is None and self.opener
            opened = lark.text_up_to(self.opener, controls[:-1]) if free else lark.text(self.opener)
            choices.append(f"{opened} {calls}".strip())
        if wanted.text and wanted.output is not None:
            choices.append(lark.json(wanted.output))
        elif wanted.text:
            choices.append(lark.free_text(controls, not_first=self.begins if wanted.tools else ""))
        body = lark.either("body", choices)
        if not wanted.thinking:
            return body
        gap = lark.rule("GAP", r"/\n{0,2}/")
        thought = f"{lark.text_up_to(wanted.thinking[1])} {gap}"
        if not wanted.in_reasoning:
            thought = f"({lark.text(wanted.thinking[0])} {thought})?"
        return f"{thought} {body}"


class NoCalls(Spelling):
    """Of models that make none."""

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:  # noqa: D102
        raise FormatError(_UNKNOWN)

    def calls(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:  # noqa: D102
        raise FormatError(_UNKNOWN)


@dataclass(frozen=True)
class Calls(Spelling):
    """Calls one after another, with markers around each and around all of them."""

    call: CallSpelling
    before: str = ""
    after: str = ""
    between: str = ""
    section: tuple[str, str] = ("", "")
    several: bool = True
    """May there be more than one?"""

    begins: str = ""

    @property
    def opener(self) -> str:  # type: ignore[override]  # noqa: D102
        return self.section[0] + self.before if not self.begins else ""

    def written(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:  # noqa: D102
        each = (self.before + self.call.written(name, arguments) + self.after for name, arguments in calls)
        return self.section[0] + self.between.join(each) + self.section[1]

    def calls(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:  # noqa: D102
        call = lark.either("call", (self.call.grammar(lark, tool) for tool in tools))
        ended = f"{call} {lark.text(self.after)}".strip()
        if parallel and self.several:
            ended = f"{ended} ({lark.text(self.between + self.before)} {ended})*"
        return f"{ended} {lark.text(self.section[1])}".strip()
