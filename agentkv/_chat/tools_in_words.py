"""Writes tools, calls and results into the text of messages, for chat templates without tool support."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .messages import WriteCalls, text_of, with_calls_as_text, with_result_as_words

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format

Messages = Sequence[Mapping[str, Any]]
Definitions = Sequence[Mapping[str, Any]]

_EXAMPLE = [("function_name", {"argument": "value"})]
_NESTED = {"properties", "items", "anyOf", "oneOf", "allOf", "$ref"}


def messages_in_words(
    messages: Messages, tools: Definitions | None, form: Format, write: WriteCalls
) -> list[Mapping[str, Any]]:
    """Messages with the tools in the system prompt, calls as text, and each result as a user's message."""
    spelled = [with_calls_as_text(with_result_as_words(message), write) for message in messages]
    if not tools:
        return spelled
    words = tools_in_words(tools, form)
    if spelled and spelled[0]["role"] in ("system", "developer"):
        before = text_of(spelled[0])
        return [{**spelled[0], "content": f"{before}\n\n{words}" if before else words}, *spelled[1:]]
    return [{"role": "system", "content": words}, *spelled]


def tools_in_words(tools: Definitions, form: Format) -> str:
    """System prompt text on the tools: a signature and a short description of each, and how to call them."""
    shown = form.shown(tools)
    each = "\n".join(_tool_in_words(tool.get("function", tool)) for tool in shown)
    otherwise = "" if len(shown) > len(tools) else "\nIf no function fits, answer in words."
    return (
        f"You can call these functions:\n{each}\n\nTo call functions, answer with the calls alone, written so:\n"
        f"{form.write('', _EXAMPLE)}{otherwise}"
    )


def _tool_in_words(function: Mapping[str, Any]) -> str:
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or ()
    names = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type_in_words(schema)}" for name, schema in properties.items()
    )
    head = f"- {function['name']}({names})"
    described = function.get("description")
    rows = [f"{head}: {described}" if described else head]
    for name, schema in properties.items():
        words = _value_in_words(schema)
        if words:
            rows.append(f"    {name}: {words}")
    return "\n".join(rows)


def _type_in_words(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind or "any")


def _value_in_words(schema: Any) -> str:
    """Description of a parameter, its enum values, and its whole schema if the signature cannot express it."""
    if not isinstance(schema, Mapping):
        return ""
    words = [str(schema["description"])] if schema.get("description") else []
    if isinstance(schema.get("enum"), list):
        words.append(f"One of {', '.join(json.dumps(value, ensure_ascii=False) for value in schema['enum'])}.")
    if not _NESTED.isdisjoint(schema):
        shape = {key: value for key, value in schema.items() if key != "description"}
        words.append(json.dumps(shape, ensure_ascii=False))
    return " ".join(words)
