"""Content parsers and transforms of response templates, which turn a region's text into a value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import regex

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.pythonic import parse_calls

__all__ = ["CONTENT", "MARKS", "MATCH_SECONDS", "Args", "check_args", "check_transform", "parse_content", "transformed"]

Args = Mapping[str, Any]

_PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")
MATCH_SECONDS = 2.0
"""Time limit of a pattern, as patterns come with downloaded models."""
MARKS = ("\x01", "\x02")
"""Delimiters of the number that replaces an extracted string; no text may contain them."""


def parse_content(text: str, kind: str, args: Args) -> Any:
    """Parses a region's text with the content parser `kind`. Raises ValueError for a text that it cannot parse."""
    try:
        return CONTENT[kind](text, args)
    except TimeoutError:
        raise ValueError("its pattern takes too long") from None


def transformed(template: Any, scope: Mapping[str, Any]) -> Any:
    """Fills in the placeholders of a transform (`{name}`, `{content.arguments}`). Raises ValueError."""
    if isinstance(template, Mapping):
        return {key: transformed(value, scope) for key, value in template.items()}
    if isinstance(template, list):
        return [transformed(value, scope) for value in template]
    match = _PLACEHOLDER.fullmatch(template) if isinstance(template, str) else None
    if match is None:
        return template
    value: Any = scope
    for key in match[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"nothing for {template} in it")
        value = value[key]
    return value


def check_transform(what: str, template: Any) -> None:
    """Raises FormatError for a placeholder within a longer string: only whole strings are filled in."""
    if isinstance(template, Mapping | list):
        for value in template.values() if isinstance(template, Mapping) else template:
            check_transform(what, value)
    elif isinstance(template, str) and _PLACEHOLDER.search(template) and not _PLACEHOLDER.fullmatch(template):
        raise FormatError(f"the transform of {what} mixes a placeholder with text: {template!r}")


def check_args(what: str, kind: str, args: object) -> None:
    """Raises FormatError for arguments that a content parser cannot work with."""
    if not isinstance(args, Mapping):
        raise FormatError(f"content_args of {what} must be a mapping")
    if kind == "xml-inline":
        try:
            groups = regex.compile(args.get("tag_pattern", ""), regex.DOTALL).groupindex
        except (regex.error, TypeError) as error:
            raise FormatError(f"the tag_pattern of {what} is no pattern: {error}") from error
        if "key" not in groups:
            raise FormatError(f"the tag_pattern of {what} needs a group `key`")
    for pair in args.get("string_delims", []):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(d, str) and d for d in pair):
            raise FormatError(f"string_delims of {what} must be pairs of texts")
    if not all(isinstance(args.get(key, ":"), str) and args.get(key, ":") for key in ("line_sep", "kv_sep")):
        raise FormatError(f"separators of {what} must be texts that are not empty")
    inner = args.get("value_parser")
    if inner is not None:
        if not isinstance(inner, Mapping) or inner.get("name", "text") not in CONTENT:
            raise FormatError(f"the value_parser of {what} must name a content: {', '.join(sorted(CONTENT))}")
        check_args(f"the value_parser of {what}", inner.get("name", "text"), inner.get("args", {}))


def _text(text: str, args: Args) -> str:
    return text.strip() if args.get("strip", True) else text


def _int(text: str, args: Args) -> int:
    return int(_text(text, args))


def _float(text: str, args: Args) -> float:
    return float(_text(text, args))


def _bool(text: str, args: Args) -> bool:
    return _text(text, args).lower() in ("true", "1")


def _json(text: str, args: Args) -> Any:
    """Parses JSON with the extensions in `args`: `unquoted_keys`, `string_delims`, `allow_non_json`."""
    plain, strings = text, []
    delimiters = args.get("string_delims", [])
    if delimiters and any(mark in text for mark in MARKS):
        raise ValueError("it has control characters")
    for opening, closing in delimiters:

        def take_out(match: regex.Match[str]) -> str:
            strings.append(match[1])
            return f"{MARKS[0]}{len(strings) - 1}{MARKS[1]}"

        pattern = regex.escape(opening) + "(.*?)" + regex.escape(closing)
        plain = regex.sub(pattern, take_out, plain, flags=regex.DOTALL)
    if args.get("unquoted_keys", False):
        plain = regex.sub(r"(?<=[{,])(\w+):", r'"\1":', plain)
    for index, string in enumerate(strings):
        plain = plain.replace(f"{MARKS[0]}{index}{MARKS[1]}", json.dumps(string))
    try:
        return json.loads(plain)
    except json.JSONDecodeError as error:
        if args.get("allow_non_json"):
            return _text(text, args)
        raise ValueError(f"no JSON: {error}") from None
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _xml_inline(text: str, args: Args) -> dict[str, Any]:
    """The keys and values that `tag_pattern` finds."""
    pattern = args["tag_pattern"]
    found: dict[str, Any] = {}
    for match in regex.finditer(pattern, text, flags=regex.DOTALL, timeout=MATCH_SECONDS):
        groups = match.groupdict()
        if groups["key"] is None:
            raise ValueError("it has a tag without a key")
        key, value = groups["key"], _part(groups.get("value") or "", args)
        if key not in found or not args.get("merge_duplicates", False):
            found[key] = value
        elif isinstance(found[key], list):
            found[key].append(value)
        else:
            found[key] = [found[key], value]
    return found


def _kv_lines(text: str, args: Args) -> dict[str, Any]:
    """The keys and values of lines such as `key: value`."""
    separator = args.get("kv_sep", ":")
    found: dict[str, Any] = {}
    for line in text.split(args.get("line_sep", "\n")):
        key, separated, value = _text(line, args).partition(separator)
        if separated:
            found[_text(key, args)] = _part(_text(value, args), args)
    return found


def _part(text: str, args: Args) -> Any:
    inner = args.get("value_parser")
    return text if inner is None else parse_content(text, inner.get("name", "text"), inner.get("args", {}))


def _pythonic(text: str, _: Args) -> list[dict[str, Any]]:
    return [{"name": name, "arguments": arguments} for name, arguments in parse_calls(text)]


CONTENT: Mapping[str, Callable[[str, Args], Any]] = {
    "text": _text,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "json": _json,
    "xml-inline": _xml_inline,
    "kv-lines": _kv_lines,
    "pythonic": _pythonic,  # of ours: a list of Python calls
}
