"""Grammars: descriptions of what a generation may say, frozen and hashable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeGuard

from .._errors import InvalidInput
from .._shown import shown


class GrammarSource(Protocol):
    """A description that llguidance compiles, frozen and hashable. An output goes on under an equal one."""

    @property
    def grammar(self) -> str:
        """The grammar as llguidance takes it."""


def is_grammar_source(value: object) -> TypeGuard[GrammarSource]:
    """Whether it gives a grammar; without making that."""
    return hasattr(type(value), "grammar")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A context-free grammar, in llguidance's variant of Lark; frozen.

    A rule named `start` is what an output is; `<|name|>` and `<[7]>` are single tokens, all else is text.
    https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md

    Attributes:
        lark: the text of the grammar.
    """

    lark: str

    def __post_init__(self) -> None:
        if not isinstance(self.lark, str):
            raise InvalidInput(f"lark is {shown(self.lark)}, but it must be the text of a grammar")

    @property
    def grammar(self) -> str:
        """The grammar as llguidance takes it."""
        from llguidance import LLMatcher

        return LLMatcher.grammar_from_lark(self.lark)
