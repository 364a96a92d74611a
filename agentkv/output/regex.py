"""Text that matches a regular expression."""

from __future__ import annotations

from dataclasses import dataclass

from .._types.checks import checked_text
from .._types.errors import InvalidInput
from .._types.show import preview
from ._llguidance import llguidance
from ._schema_checks import refusal
from .grammar import GrammarSource


@dataclass(frozen=True, slots=True)
class Regex(GrammarSource[str]):
    """Text that matches a regular expression from beginning to end: `generate(output=kv.Regex(r"[0-9]{4}"))`.

    The syntax is that of Rust's `regex` crate: Python's, without lookarounds, back references and word boundaries. `^`
    and `$` may stand at the ends, without effect. `.` matches newlines only under `(?s)`. The value is the text.

    Raises:
        InvalidInput: an expression that is malformed, or that a grammar cannot hold.
    """

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise InvalidInput(f"pattern is {preview(self.pattern)}, but it must be a str, such as r'[0-9]{{4}}'")
        object.__setattr__(self, "pattern", checked_text(self.pattern, "pattern"))
        if reason := refusal(self.grammar):
            raise InvalidInput(f"the pattern {preview(self.pattern)} cannot be made a grammar: {_fault(reason)}")

    @property
    def grammar(self) -> str:
        """The expression in llguidance's form."""
        grammar: str = llguidance().LLMatcher.grammar_from_regex(self.pattern)
        return grammar

    def read(self, text: str) -> str:
        """The text itself."""
        return text


def _fault(reason: str) -> str:
    """llguidance's reason without the lines that show the place, as there is one line only."""
    said = reason.partition(" 1 | start:")[0]
    return said.rpartition("error: " if "error: " in said else "(in regex): ")[2]
