"""Incremental readers of the text inside a call's markers, with events for names, arguments and calls of a list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from agentkv_runtime.formats.nesting import Nesting

__all__ = ["Arguments", "Body", "JsonCalls", "Name", "PythonCalls", "WholeCall", "Written"]


@dataclass(frozen=True, slots=True)
class Name:
    """The name of the next call, once it is known."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A further piece of the open call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class Written:
    """Text of a finished call of a list."""

    text: str


Event = Name | Arguments | Written


class Body:
    """Yields events while a body is written. This base yields none, for formats that are read when complete."""

    def feed(self, text: str) -> Iterator[Event]:
        """Reads more of the body. The caller must exhaust the iterator."""
        yield from ()

    @property
    def unfinished(self) -> str:
        """Text of the call that has begun and not ended."""
        return ""


class WholeCall(Body):
    """A body of nothing but arguments, for formats whose opening marker has the name."""

    def feed(self, text: str) -> Iterator[Event]:  # noqa: D102
        yield Arguments(text)


class JsonCalls(Body):
    """A JSON object with name and arguments under keys of the format, or a list of such objects."""

    def __init__(self, name_key: str, arguments_key: str) -> None:
        self._name_key, self._arguments_key = name_key, arguments_key
        self._nesting = Nesting()
        self._level = 0  # depth of a call's own keys; 0 until the first bracket shows it
        self._call: list[str] = []
        self._token: list[str] = []  # a key, or the name
        self._key: str | None = None  # whose value is read
        self._named = False
        self._arguments: list[str] = []  # not told yet

    def feed(self, text: str) -> Iterator[Event]:  # noqa: D102
        for character in text:
            yield from self._read(character)
        yield from self._told()

    @property
    def unfinished(self) -> str:  # noqa: D102
        return "".join(self._call).strip()

    def _read(self, character: str) -> Iterator[Event]:
        nesting = self._nesting
        in_string, depth = nesting.in_string, nesting.depth
        nesting.read(character)
        self._call.append(character)
        if not self._level and nesting.depth:
            self._level = 2 if character == "[" else 1
        structure = not in_string and not nesting.in_string
        if structure and max(depth, nesting.depth) < self._level:
            self._call = []  # between calls
        elif structure and depth < nesting.depth == self._level:  # a call begins
            self._call = [character]
            self._key, self._token, self._named, self._arguments = None, [], False, []
        elif structure and nesting.depth < depth == self._level:  # a call ends
            yield from self._told()
            if self._level == 2:
                yield Written("".join(self._call))
                self._call = []
        elif structure and nesting.depth == depth == self._level and character in ":, \t\r\n":
            if character == ":":
                self._key, self._token = _string(self._token), []
            elif character == ",":
                self._key, self._token = None, []
        elif self._key == self._arguments_key:
            self._arguments.append(character)
        else:
            self._token.append(character)
            if self._key == self._name_key and in_string and not nesting.in_string and not self._named:
                self._named = True
                yield Name(_string(self._token))

    def _told(self) -> Iterator[Event]:
        if self._named and self._arguments:
            yield Arguments("".join(self._arguments))
            self._arguments = []


class PythonCalls(Body):
    """Python calls in a list, or one alone."""

    def __init__(self) -> None:
        self._nesting = Nesting("\"'")
        self._list = False
        self._call: list[str] = []
        self._arguments: list[str] = []

    def feed(self, text: str) -> Iterator[Event]:  # noqa: D102
        for character in text:
            yield from self._read(character)
        yield from self._told()

    @property
    def unfinished(self) -> str:  # noqa: D102
        return "".join(self._call).strip()

    def _read(self, character: str) -> Iterator[Event]:
        nesting = self._nesting
        depth = nesting.depth
        nesting.read(character)
        if character == "[" and nesting.depth == 1 and not self._list and not "".join(self._call).strip():
            self._list = True
            return
        level = int(self._list)
        if depth <= level and character in ",]" and not self.unfinished:  # between calls
            return
        self._call.append(character)
        if depth == level and nesting.depth == level + 1 and character == "(":
            yield Name("".join(self._call[:-1]).strip())
        elif depth == level + 1 and nesting.depth == level:
            yield from self._told()
            yield Written("".join(self._call).strip())
            self._call = []
        elif depth > level:
            self._arguments.append(character)

    def _told(self) -> Iterator[Event]:
        if self._arguments:
            yield Arguments("".join(self._arguments))
            self._arguments = []


def _string(characters: list[str]) -> str:
    try:
        return str(json.loads("".join(characters)))
    except ValueError:
        return ""
