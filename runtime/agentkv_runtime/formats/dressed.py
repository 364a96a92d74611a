"""Calls of known tools in another spelling than the model's format: JSON in a code block or bare, a tag of the model's
own, Python. The text around a call decides whether it is one, or an example for a person."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import regex
from pydantic_core import from_json

from agentkv_runtime.formats.answering import ANSWER_NAME, answer_in, is_answer
from agentkv_runtime.formats.known_tools import ARGUMENT_KEYS, LIST_KEYS, NAME_KEYS, KnownTools
from agentkv_runtime.formats.loose_values import bracketed, loose_value, unclosed
from agentkv_runtime.formats.parsed import CUT_OFF, ParsedCall
from agentkv_runtime.formats.pythonic import parse_calls

__all__ = ["DressedCalls", "Read"]

_LIST = "```json\n"  # what stands before a list of calls
_MOST_BEHIND = 200  # characters of prose behind a call; where there are more, they explain what it shows
_KEYS = "|".join(NAME_KEYS)
_OTHER_KEYS = "|".join([*ARGUMENT_KEYS, *LIST_KEYS, "function", "type", "id"])
# All that begins a call has a bound and cannot begin in two places at once: a text is read in linear time, in any cuts.
_SPACE = r"\s{0,80}+"
_FENCE = rf"(?<!`)`{{3,8}}+[\w-]{{0,20}}{_SPACE}"
_TAG = rf"<\|?[A-Za-z_][^<>\n\[{{]{{0,120}}+>{_SPACE}|\[[A-Z][A-Z_]{{2,20}}+\]{_SPACE}"
_WRAPPING = regex.compile(rf"(?:[\s,;]|{_FENCE}|{_TAG})*")
_CLOSING = regex.compile(r"(?:[\s,;\])]|`{3,}(?=\s|$)|</?\|?[^<>\n]{1,40}>|\[/[A-Z_]{3,20}\])*")
_NAME = regex.compile(r"[\w.:/-]+\s*(?=\()")
_WORD = regex.compile(r"(?<=[=:\s\"'<])[\w.:/-]+")


class Read(NamedTuple):
    """A message's content, split into text and calls."""

    text: str
    calls: list[ParsedCall]


class DressedCalls:
    """Reads the content of one message while it is written; withholds it from the first possible call on, until `end`.

    Args:
        tools: definitions of the tools whose calls are looked for.
        own: the spelling of the model's format, if it is one of these; its calls do not count as rescued.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]], own: str | None = None) -> None:
        self._tools = KnownTools(tools)
        self._answers = any(map(is_answer, tools))
        self._own = own
        self._head = _head_of(self._tools.names)
        self._text = ""
        self._told = 0  # characters that are text for certain
        self._read = 0  # no call begins before
        self._is_found = False  # what may be a call begins there

    def feed(self, text: str) -> str:
        """Reads more content; returns further content that is certainly text."""
        self._text += text
        if not self._is_found:
            match = self._head.search(self._text, self._read, partial=True)
            self._read = len(self._text) if match is None else match.start()
            self._is_found = match is not None and not match.partial
        told = self._text[self._told : self._read].rstrip()  # white space may be that before a call
        self._told += len(told)
        return told

    @property
    def held(self) -> str:
        """Content that `feed` has not returned, as it may be calls."""
        return self._text[self._told :]

    def end(self, *, goes_on: bool = False) -> Read:
        """Ends the content, or where the message `goes_on` with a call of the format's own its part before that: reads
        `held` into text and calls, and empties it."""
        held, before = self.held, self._text[: self._told]
        read = self.read(held, alone=not before.strip(), goes_on=goes_on)
        self._text = before + read.text  # calls are nothing that later ones stand beside
        self._told = self._read = len(self._text)
        self._is_found = False
        return read

    def read(self, text: str, *, alone: bool = True, goes_on: bool = False) -> Read:
        """Splits a text into calls and the text beside them; finds no calls if the text shows them to a person.

        Args:
            text: content of a message, or its end.
            alone: whether the content has nothing else in front.
            goes_on: whether the message goes on behind it, so that no call is cut off by its end.
        """
        if self._own and alone and not goes_on and (begun := self._begun(text)) is not None:
            return begun
        calls: list[ParsedCall] = []
        texts, at, half = [], 0, ""
        while match := self._head.search(text, at, partial=True):
            run = self._run(text, match.start())
            if calls and not run.calls and not goes_on and _is_cut(text, match):
                text, half = text[: match.start()], text[match.start() :]
                break
            if match.partial:
                break
            texts.append(text[at : match.end() if not run.calls else match.start()])
            if len("".join(texts[1:]).strip()) > _MOST_BEHIND:
                return Read(text, [])
            calls += run.calls
            at = run.end if run.calls else match.end()
        texts.append(text[at:])
        behind = "".join(texts[1:]).strip()
        told = alone and not behind and not texts[0].strip()
        meant = len(behind) <= _MOST_BEHIND and (told or all(map(self._tools.fits, calls)))
        if not calls or not meant:
            return Read(text + half, [])
        if half:
            name = next(filter(None, map(self._tools.name_of, _WORD.findall(half))), "")
            calls.append(ParsedCall(name, None, half, CUT_OFF, calls[-1].rescued))
        own = [replace(call, rescued=None) if call.rescued == self._own else call for call in calls]
        return self._answered("".join(texts), own)

    def _begun(self, text: str) -> Read | None:
        """Reads an unfinished list of calls in the format's own spelling; None for any other text.

        Its last call is cut off, or is the part of an answer in words that was written.
        """
        listed = text.lstrip().removeprefix(_LIST)
        if not listed.startswith("[{") or bracketed(listed, 0):
            return None
        try:
            *whole, last = from_json(listed, allow_partial="trailing-strings")
        except ValueError:
            return None
        calls = self._tools.calls(whole, listed, "json")
        name = last.get("name") if isinstance(last, dict) else None
        if self._answers and name == ANSWER_NAME:
            said = answer_in(ParsedCall(ANSWER_NAME, dict(last.get("arguments") or {}), listed))
            return self._answered(said, [replace(call, rescued=None) for call in calls])
        half = ParsedCall(self._tools.name_of(name) or "", None, listed, CUT_OFF)
        return self._answered("", [*(replace(call, rescued=None) for call in calls), half])

    def _answered(self, text: str, calls: list[ParsedCall]) -> Read:
        """A Read of text and calls in which calls of the answer function are text."""
        said = [answer_in(call) for call in calls if self._answers and call.name == ANSWER_NAME]
        if not said:
            return Read(text, calls)
        text = "\n".join(filter(None, [text.strip(), *said]))
        return Read(text, [call for call in calls if call.name != ANSWER_NAME])

    def _run(self, text: str, start: int) -> _Run:
        """Consecutive calls from `start` on, and where they end."""
        calls: list[ParsedCall] = []
        before = end = start  # what closes a call may be what begins the next one
        while True:
            wrapping = _WRAPPING.match(text, end)
            assert wrapping is not None
            body = self._body(text, wrapping.end(), self._named_in(text[before : wrapping.end()]))
            if not body.calls:
                return _Run(calls, end)
            calls += body.calls
            closing = _CLOSING.match(text, body.end)
            assert closing is not None
            before, end = body.end, closing.end()

    def _named_in(self, wrapping: str) -> str | None:
        """Name of the tool in a tag such as `<function=weather>` or `<tool_call name="weather">`; None without one."""
        words = _WORD.findall(wrapping) if "<" in wrapping else []
        return next((name for name in map(self._tools.name_of, words) if name is not None), None)

    def _body(self, text: str, start: int, named: str | None) -> _Run:
        """One call or a list of calls at `start`; `named` is the tool of the tag in front."""
        if text[start : start + 1] in ("{", "["):
            raw = bracketed(text, start)
            raw, closed = (raw, raw) if raw else unclosed(text, start)
            value = loose_value(closed) if raw else None
            calls = self._tools.calls(value, raw, "json")
            if not calls and named is not None:
                calls = [call for call in [self._tools.call(named, value, raw, "tag")] if call is not None]
            return _Run(calls or self._python(raw), start + len(raw))
        match = _NAME.match(text, start)
        raw = match[0] + bracketed(text, match.end()) if match else ""
        return _Run(self._python(raw), start + len(raw))

    def _python(self, raw: str) -> list[ParsedCall]:
        try:
            written = parse_calls(raw) if raw else []
        except ValueError:
            return []
        calls = [self._tools.call(name, arguments, raw, "python") for name, arguments in written]
        return [call for call in calls if call is not None] if all(calls) else []


class _Run(NamedTuple):
    calls: list[ParsedCall]
    end: int


def _is_cut(text: str, head: regex.Match[str]) -> bool:
    """Whether the text ends within the call that begins at `head`."""
    if head.partial:
        return any(mark in head[0] for mark in "{[<(`")
    wrapping = _WRAPPING.match(text, head.start())
    assert wrapping is not None
    body = _NAME.match(text, wrapping.end()) or wrapping
    return body.end() == len(text) or (text[body.end()] in "{[(" and not bracketed(text, body.end()))


@functools.lru_cache(64)
def _head_of(names: tuple[str, ...]) -> regex.Pattern[str]:
    """Pattern of the beginning of a call, up to a tool's name or another key of calls."""
    known = "|".join(map(_spellings, sorted(names, key=len, reverse=True)))
    wrapped = rf"(?:{_FENCE})?(?:{_TAG})?"
    named = rf"""(?:{_KEYS})["']{_SPACE}:{_SPACE}["'](?:functions\.)?(?:{known})["']"""
    json = rf"""[\[{{][\s\[{{]{{0,80}}+["'](?:{named}|(?:{_OTHER_KEYS}|{known})["']{_SPACE}:)"""
    python = rf"(?:\[{_SPACE})?(?:functions\.)?(?:{known}){_SPACE}\("
    tag = rf"""<\|?\w{{0,40}}+[\s=:][^<>\n\[{{]{{0,60}}?["']?(?:{known})["']?[^<>\n\[{{]{{0,60}}+>"""
    at_line = r"(?<![^\n])[ \t]{0,80}+"
    begun = [f"{wrapped}{json}", f"{at_line}{wrapped}{python}", f"(?:{_FENCE})?{tag}"]
    return regex.compile("|".join(begun), regex.IGNORECASE)


def _spellings(name: str) -> str:
    """Pattern of a tool's name with any separators between its words."""
    return regex.sub(r"[\W_]+", r"[\\W_]", name) if regex.search(r"[^\W_]", name) else regex.escape(name)
