"""Text that matches a regular expression."""

from __future__ import annotations

from dataclasses import dataclass

from .._types.checks import text_of
from .._types.errors import InvalidInput
from .._types.show import shown
from ._llguidance import llguidance
from ._schema_checks import refusal
from .grammar import GrammarSource


@dataclass(frozen=True, slots=True)
class Regex(GrammarSource[str]):
    """Text that matches a regular expression from beginning to end: `generate(output=kv.Regex(r"[0-9]{4}"))`.

    The syntax is that of Rust's `regex` crate: Python's, without lookarounds, back references and word boundaries. `^`
    and `$` may stand at the ends and add nothing there. `.` matches no newline; `(?s)` makes it. The value is the text.

    Raises:
        InvalidInput: an expression that is malformed, or that a grammar cannot hold.
    """

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise InvalidInput(f"pattern is {shown(self.pattern)}, but it must be a str, such as r'[0-9]{{4}}'")
        object.__setattr__(self, "pattern", text_of(self.pattern, "pattern"))
        if reason := refusal(self.grammar):
            raise InvalidInput(f"the pattern {shown(self.pattern)} cannot be made a grammar: {_fault(reason)}")

    @property
    def grammar(self) -> str:
        """The expression as llguidance takes it."""
        grammar: str = llguidance().LLMatcher.grammar_from_regex(self.pattern)
        return grammar

    def read(self, text: str) -> str:
        """The text itself."""
        return text


def _fault(reason: str) -> str:
    """What is wrong, without the lines that show where: there is one line only."""
    said = reason.partition(" 1 | start:")[0]
    return said.rpartition("error: " if "error: " in said else "(in regex): ")[2]
