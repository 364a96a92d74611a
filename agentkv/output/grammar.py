"""Grammars: descriptions of outputs, frozen and hashable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from .._types.errors import InvalidInput
from .._types.show import preview
from ._llguidance import llguidance

Out_co = TypeVar("Out_co", covariant=True)


class GrammarSource(ABC, Generic[Out_co]):
    """A description that llguidance compiles. Frozen and hashable: an output continues under an equal one."""

    __slots__ = ()

    @property
    @abstractmethod
    def grammar(self) -> str:
        """The grammar in llguidance's form."""

    @abstractmethod
    def read(self, text: str) -> Out_co:
        """Parses a complete output. Raises OutputIncomplete, OutputInvalid."""


@dataclass(frozen=True, slots=True)
class Grammar(GrammarSource[str]):
    """A context-free grammar, in llguidance's variant of Lark; frozen.

    The rule `start` describes an output; `<|name|>` and `<[7]>` are single tokens, all else is text.
    https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md

    Attributes:
        lark: the text of the grammar.
    """

    lark: str

    def __post_init__(self) -> None:
        if not isinstance(self.lark, str):
            raise InvalidInput(f"lark is {preview(self.lark)}, but it must be the text of a grammar")

    @property
    def grammar(self) -> str:
        """The grammar in llguidance's form."""
        grammar: str = llguidance().LLMatcher.grammar_from_lark(self.lark)
        return grammar

    def read(self, text: str) -> str:
        """The text itself."""
        return text


@dataclass(frozen=True, slots=True)
class MessageGrammar(Grammar):
    """A grammar of a whole message with its reasoning and calls, as call formats make it."""
