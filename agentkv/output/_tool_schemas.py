"""Tool schemas for grammars: one that no grammar can enforce is loosened, and does not affect the others."""

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
"""Receives the name of a tool, and the keywords that its calls are not constrained to."""

_OBJECT = {"type": "object"}  # the type of all arguments
_ANY = {"additionalProperties": True}  # for schemas that lost every keyword on properties


def grammar_tools(form: Format, definitions: Sequence[Definition], tell: Tell) -> list[Definition]:
    """The tools with their schemas loosened as far as a grammar requires. `tell` gets the keywords dropped."""
    return [_held(form, definition, tell) for definition in definitions]


@lru_cache(maxsize=1024)  # once for each
def say_loosened(tool: str, keywords: Sequence[str]) -> None:
    """Logs the keywords that calls of a tool are not constrained to, but checked against afterwards."""
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
    """Returns whether llguidance refuses the grammar of the tool's calls, which depends on the format's notation."""
    try:
        return refusal(form.grammar([definition], choice="required")) is not None
    except FormatError:  # the format has no calls, which is reported where they are needed
        return False


def _with_parameters(definition: Definition, parameters: Mapping[str, Any]) -> Definition:
    if "function" not in definition:
        return {**definition, "parameters": parameters}
    return {**definition, "function": {**definition["function"], "parameters": parameters}}
