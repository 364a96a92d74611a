"""From the regions of a template's calls to the calls themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentkv_runtime.formats.call_body import Arguments, Body, JsonCalls, Name, PythonCalls, WholeCall, Written
from agentkv_runtime.formats.casts import Schemas, cast_arguments
from agentkv_runtime.formats.content import parse_content, transformed
from agentkv_runtime.formats.parsed import CUT_OFF, ArgumentsDelta, CallClosed, CallOpened, Delta, ParsedCall
from agentkv_runtime.formats.regions import Region
from agentkv_runtime.formats.template import Field
from agentkv_runtime.formats.values import check_value

__all__ = ["CallReader", "region_value"]

_NO_CALL = "what is written there is no call"


def region_value(entry: Field, text: str, captures: Mapping[str, str]) -> Any:
    """The value of a region: its content, parsed and transformed as the field says. Raises ValueError."""
    value = parse_content(text, entry.content, entry.content_args)
    if entry.transform is None:
        return value
    if not entry.transform_each:
        return transformed(entry.transform, {**captures, "content": value})
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("it must be a list of objects")
    return [transformed(entry.transform, {**captures, **item}) for item in value]


class CallReader:
    """Reads one region of calls while it is written. `first` is the index in the message of its first call."""

    def __init__(self, region: Region, first: int, schemas: Schemas) -> None:
        self._region = region
        self._schemas = schemas
        self._first = first
        self._body = _body_of(region.entry)
        self._named: list[str] = []  # of all calls that were opened, "" for those that never had one
        self._listed = False  # has a call of a list ended?
        self.closed: list[ParsedCall] = []

    def begin(self) -> Iterator[Delta]:
        """Yields the deltas of the opening marker, which may have the name."""
        if isinstance(self._body, WholeCall):
            yield from self._open(self._region.captures["name"])

    def feed(self, text: str) -> Iterator[Delta]:
        """Reads more of the body and yields its deltas."""
        for event in self._body.feed(text):
            match event:
                case Name(name):
                    yield from self._open(name)
                case Arguments(part) if len(self._named) > len(self.closed):
                    yield ArgumentsDelta(self._first + len(self.closed), part)
                case Written(call):
                    self._listed = True
                    yield from self._close(self._calls(f"[{call}]", call)[:1])

    def end(self, *, closed: bool) -> Iterator[Delta]:
        """Ends the region and closes its open calls; `closed` says whether its closing marker was read."""
        text = self._body.unfinished if self._listed else self._region.text
        if self._listed:
            yield from self._close([self._failed(_NO_CALL if closed else CUT_OFF, text)] if text else [])
        else:
            yield from self._close(self._calls(text, text) if closed else [self._failed(CUT_OFF, text)])

    def _open(self, name: str) -> Iterator[Delta]:
        if name and len(self._named) == len(self.closed):
            self._named.append(name)
            yield CallOpened(self._first + len(self.closed), name)

    def _close(self, calls: list[ParsedCall]) -> Iterator[Delta]:
        for call in calls:
            yield from self._open(call.name)
            yield CallClosed(self._first + len(self.closed), call)
            self.closed.append(call)
            self._named = self._named[: len(self.closed)] + [""] * (len(self.closed) - len(self._named))

    def _calls(self, text: str, raw: str) -> list[ParsedCall]:
        try:
            value = region_value(self._region.entry, text, self._region.captures)
            return [self._call(item, raw) for item in (value if isinstance(value, list) else [value])]
        except (ValueError, RecursionError) as error:
            return [self._failed(f"{_NO_CALL}: {error}", raw)]

    def _call(self, value: Any, raw: str) -> ParsedCall:
        function = value.get("function", value) if isinstance(value, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise ValueError("it names no tool")
        arguments = function.get("arguments", function.get("parameters"))
        if isinstance(arguments, str):
            arguments = json.loads(arguments) if arguments.strip() else {}
        if not isinstance(arguments, Mapping | None):
            raise ValueError("its arguments are no object")
        name = function["name"]
        made = cast_arguments(arguments or {}, self._schemas.get(name, {}))
        check_value(made)
        return ParsedCall(name, made, raw)

    def _failed(self, why: str, raw: str) -> ParsedCall:
        named = self._named[len(self.closed) :]
        return ParsedCall(named[0] if named else "", None, raw, why)


def _body_of(entry: Field) -> Body:
    """The reader of a field's regions, chosen by where its transform takes name and arguments from."""
    if entry.content == "pythonic":
        return PythonCalls()
    transform = "{content}" if entry.transform is None else entry.transform
    function = transform.get("function", transform) if isinstance(transform, Mapping) else transform
    if function == "{content}":
        return JsonCalls("name", "arguments") if _is_strict_json(entry) else Body()
    if not isinstance(function, Mapping):
        return Body()
    name, arguments = str(function.get("name")), str(function.get("arguments"))
    if name == "{name}" and arguments == "{content}" and not entry.transform_each:
        return WholeCall()
    prefix = "" if entry.transform_each else "content."
    keys = [path[1 + len(prefix) : -1] for path in (name, arguments) if path.startswith("{" + prefix)]
    if _is_strict_json(entry) and len(keys) == 2 and not any("." in key for key in keys):
        return JsonCalls(*keys)
    return Body()


def _is_strict_json(entry: Field) -> bool:
    return entry.content == "json" and not entry.content_args.get("string_delims")
