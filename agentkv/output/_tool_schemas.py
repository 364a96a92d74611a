"""Tools as their calls are held to them: one whose schema no grammar holds stops no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.call_spelling import tool_of

from .._types.log import log
from ._loosen import loosened
from ._schema_checks import refusal

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format

Definition = Mapping[str, Any]
Tell = Callable[[str, Sequence[str]], None]
"""Of the name of a tool, and the keywords that its calls are not held to."""

_OBJECT = {"type": "object"}  # which arguments are
_ANY = {"additionalProperties": True}  # arguments, where the schema has come to say nothing of them


def held_tools(form: Format, definitions: Sequence[Definition], tell: Tell) -> list[Definition]:
    """The same tools, of whose schemas each says what a grammar can hold: of most of them all, of a few anything."""
    return [_held(form, definition, tell) for definition in definitions]


@lru_cache(maxsize=1024)  # once for each
def say_loosened(tool: str, keywords: Sequence[str]) -> None:
    """Logs what calls of a tool are not held to, and are checked for afterwards."""
    log.info(
        "calls of a tool are held to a part of its schema and checked for the rest", tool=tool, rest=list(keywords)
    )


def _held(form: Format, definition: Definition, tell: Tell) -> Definition:
    tool = tool_of(definition)
    given = {**tool.parameters, **_OBJECT}
    schema, dropped = loosened(given)
    made = _with_parameters(definition, _ANY | schema | _OBJECT)
    if _refused(form, made):
        made, dropped = _with_parameters(definition, _ANY | _OBJECT), tuple(given)
    if dropped:
        tell(tool.name, dropped)
    return made


def _refused(form: Format, definition: Definition) -> bool:
    """Is the grammar of its calls none? Formats with a notation of their own read schemas in their own way."""
    try:
        return refusal(form.grammar([definition], choice="required")) is not None
    except FormatError:  # it has no calls, which is said where they are asked for
        return False


def _with_parameters(definition: Definition, parameters: Mapping[str, Any]) -> Definition:
    if "function" not in definition:
        return {**definition, "parameters": parameters}
    return {**definition, "function": {**definition["function"], "parameters": parameters}}
