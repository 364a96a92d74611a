"""Finding a model's call format: from its folder, or from the spelling of calls in its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.families import FAMILIES, Family
from agentkv_runtime.formats.families.generic import GENERIC
from agentkv_runtime.formats.families.plain import PLAIN
from agentkv_runtime.formats.fenced import FENCED
from agentkv_runtime.formats.format import Format
from agentkv_runtime.formats.parser import REASONING
from agentkv_runtime.formats.probe import CALLS, Call, definitions, reply_headers, reply_with_calls
from agentkv_runtime.formats.template import ResponseTemplate, load_template

if TYPE_CHECKING:
    from agentkv_runtime.text.tokenizer import Tokenizer

__all__ = ["TEMPLATE", "find_format", "format_name"]

TEMPLATE = "response_template"
"""Name of the format of a folder with a response template of its own."""


def find_format(
    tokenizer: Tokenizer,
    wanted: Format | Family | Mapping[str, Any] | str | None = None,
    *,
    rescue: bool = False,
) -> Format:
    """The format of a model's output.

    Args:
        tokenizer: the model's tokenizer.
        wanted: the name of a known format, a response template, a family or a format; None takes the folder's response
            template, or else the format of its chat template.
        rescue: whether calls of known tools in another spelling are calls. Ignored if `wanted` is a Format.

    Raises:
        FormatError: for an unknown name, or a malformed response template.
    """
    if isinstance(wanted, Format):
        return wanted
    return replace(_found(tokenizer, wanted), rescue=rescue)


def _found(tokenizer: Tokenizer, wanted: Family | Mapping[str, Any] | str | None) -> Format:
    if isinstance(wanted, Family):
        return _fitted(wanted, tokenizer)
    if isinstance(wanted, Mapping):
        return _read_by(load_template(wanted), tokenizer)
    name = format_name(tokenizer) if wanted in (None, TEMPLATE) else wanted
    if name == TEMPLATE:
        return _read_by(load_template(tokenizer.response_template), tokenizer)
    if name not in FAMILIES:
        raise FormatError(f"there is no format {name!r}; known are {', '.join(FAMILIES)}")
    return _fitted(FAMILIES[name], tokenizer)


def format_name(tokenizer: Tokenizer) -> str:
    """Name of a model's format; "generic" if its chat template has no known spelling of calls, "plain" without one.

    Renders a conversation with calls, and picks the format that parses them and whose spelling is most alike.
    """
    if tokenizer.response_template is not None:
        return TEMPLATE
    family = _family_of(tokenizer)
    if family is not None:
        return family.name
    return GENERIC.name if reply_headers(tokenizer) else PLAIN.name


def _fitted(family: Family, tokenizer: Tokenizer) -> Format:
    thinks = family.thinking is not None and tokenizer.knows(family.thinking[0])
    headers = reply_headers(tokenizer)
    if family.thinking:
        headers = [header.partition(family.thinking[0])[0] for header in headers]
    return family.fit(tokenizer.added_ids, ends=tokenizer.ends, thinks=thinks, headers=headers)


def _family_of(tokenizer: Tokenizer) -> Family | None:
    """The family that parses the calls of the chat template and writes them most alike; None if none does."""
    headers = reply_headers(tokenizer)
    callers = [family for family in FAMILIES.values() if family.calls]
    for calls in (CALLS, CALLS[:1]):  # some take one call at a time
        for reply in reply_with_calls(tokenizer, calls):
            readers = [f for f in callers if _reads(load_template(f.template(headers=headers)), reply, calls)]
            if readers:
                return max(readers, key=lambda family: _likeness(family, reply, calls))
    return None


def _likeness(family: Family, reply: str, calls: Sequence[Call]) -> int:
    """2 if a reply has the calls as the family writes them, 1 if only up to the first tool's name, 0 otherwise."""
    written, name = family.spelling.written(calls if family.spelling.several else calls[:1]), calls[0][0]
    return 2 if written in reply else int(written[: written.index(name) + len(name)] in reply)


def _reads(template: ResponseTemplate, reply: str, calls: Sequence[Call]) -> bool:
    message = Format("", template).parse(template.reply_in(reply), tools=definitions(CALLS))
    return [(call.name, call.arguments) for call in message.calls] == list(calls)


def _read_by(template: ResponseTemplate, tokenizer: Tokenizer) -> Format:
    """The format of a response template, with the spelling of a family whose calls it parses.

    Prefers the family of the chat template.
    """
    thinking = None
    for name in REASONING:
        source = template.source["fields"].get(name, {})
        if isinstance(source.get("open"), str) and isinstance(source.get("close"), str):
            thinking = source["open"], source["close"]
    likely = _family_of(tokenizer)
    callers = [family for family in FAMILIES.values() if family.calls]
    for family in [likely, *callers] if likely else callers:
        if _reads(template, family.spelling.written(CALLS[:1]), CALLS[:1]):
            return Format(TEMPLATE, template, family.spelling, thinking, tokenizer.added_ids, tokenizer.ends)
    return Format(TEMPLATE, template, FENCED, thinking, tokenizer.added_ids, tokenizer.ends)
