"""Grammars in llguidance's dialect of Lark, put together rule by rule."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.json_style import as_meant, json_style

__all__ = ["Lark"]

_ANYTHING = "(?s:.*)"


class Lark:
    """Builder of a grammar. Methods return Lark expressions; `str` gives the whole grammar.

    Args:
        tokens: ids of the tokenizer's added tokens. Where a text spells one, the grammar requires that token: models
            write them whole, and control tokens have no other form.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        spelled = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
        self._spelled = re.compile(f"({spelled})" if spelled else "(?!)")
        self._once: dict[str, str] = {}
        self._rules: dict[str, tuple[str, str]] = {}

    def __str__(self) -> str:
        return "".join(f"{head}: {body}\n" for head, body in self._rules.values())

    def rule(self, name: str, body: str, *, lazy: bool = False) -> str:
        """Adds a rule, or a terminal for a name in capitals, unless there is an equal one; returns its name.

        A name that is taken gets a number.
        """
        options = "[lazy]" if lazy else ""
        unique, count = name, 1
        while unique in self._rules:
            if self._rules[unique] == (unique + options, body):
                return unique
            count += 1
            unique = f"{name}_{count}"
        self._rules[unique] = unique + options, body
        return unique

    def either(self, name: str, choices: Iterable[str]) -> str:
        """Adds a rule of these alternatives; returns its name."""
        return self.rule(name, " | ".join(dict.fromkeys(choices)))

    def once(self, key: str, body: Callable[[], str]) -> str:
        """Name of the rule for `key`, made of `body()` on first use; the body may refer to its own key."""
        if key not in self._once:
            self._once[key] = self.rule(f"part_{len(self._once)}", "")
            self._rules[self._once[key]] = self._once[key], body()
        return self._once[key]

    def text(self, text: str) -> str:
        """Expression of a text, with the added tokens that it spells."""
        parts = self._parts(text)
        return " ".join(f"<[{self._tokens[part]}]>" if part in self._tokens else _quoted(part) for part in parts)

    def json(self, schema: Mapping[str, Any], **options: Any) -> str:
        """Expression of a JSON schema's values, in the style of `json_style`; `options` are llguidance's."""
        styled = {**as_meant(schema), "x-guidance": {**json_style(schema), **options}}
        return self.rule("json", f"%json {json.dumps(styled, ensure_ascii=False)}")

    def free_text(self, without: Iterable[str] = (), *, not_first: str = "", nowhere: str = "") -> str:
        """Expression of text without these texts, without pattern `not_first` at its start or `nowhere` anywhere."""
        nothing = f" & ~/{_ANYTHING}({nowhere}){_ANYTHING}/" if nowhere else ""
        begin = f" & ~/{not_first}{_ANYTHING}/" if not_first else ""
        return self.rule("TEXT", f"/{_ANYTHING}/{_but(without)}{begin}{nothing}")

    def text_up_to(self, end: str, without: Iterable[str] = ()) -> str:
        """Expression of text without the texts of `without`, up to the first `end`.

        Raises FormatError for an empty `end`.
        """
        if not end:
            raise FormatError(
                "nothing ends a text of this format: give a marker of at least 1 character (`before`, `section` or "
                "`marker` of Calls, `after` of TaggedCall, both of `thinking`)"
            )
        begin, *rest = self._parts(end)
        if not begin.strip() and rest:
            return self.text_up_to(end[len(begin) :], without)  # the text may have the white space
        if begin in self._tokens:
            return f"{self.free_text([*without, begin])} {self.text(end)}"
        begin = begin.rstrip() or begin
        # Without the white space around it the end is read as an end, too.
        core = f" & ~/{_ANYTHING}{_escaped(begin.strip())}(?s:.+)/" if begin.strip() not in ("", begin) else ""
        text = self.rule("UNTIL", f"/{_ANYTHING}{_escaped(begin)}/{core}{_but(without)}")
        until = self.rule("until", text, lazy=True)
        return f"{until} {self.text(end[len(begin) :])}".rstrip()

    def _parts(self, text: str) -> list[str]:
        return [part for part in self._spelled.split(text) if part]


def _but(without: Iterable[str]) -> str:
    excluded = "|".join(map(_escaped, dict.fromkeys(without)))
    return f" & ~/{_ANYTHING}({excluded}){_ANYTHING}/" if excluded else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\n", "n")
