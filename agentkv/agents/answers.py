"""What an agent's messages are held to, and what its answers are read as."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from agentkv_runtime.errors import FormatError

from .._errors import InvalidInput, OutputIncomplete, OutputInvalid
from .._shown import shown
from ..output import Constraint, Grammar, JsonSchema
from ..output._asked import asked
from ..output._typed import Typed
from ..output.grammar import GrammarSource, MessageGrammar

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format

Out = TypeVar("Out")


class Answers(Generic[Out]):
    """What `output` of an agent asks for: text, a type, or a grammar. Raises InvalidInput for anything else."""

    def __init__(self, output: object) -> None:
        self._asked = asked(output)
        self._held = self._asked.constraint
        self._schema = self._held.schema if isinstance(self._held, Typed | JsonSchema) else None
        self._last: tuple[Format, list[Mapping[str, Any]], str, Grammar] | None = None

    def check(self, tools: bool) -> None:
        """Raises InvalidInput where an answer could not be told from calls."""
        if tools and self._held is not None and self._schema is None:
            raise InvalidInput(
                f"output is {shown(self._held)}, but an agent with tools answers with text, a type or a kv.JsonSchema; "
                "have an agent without tools make this one"
            )

    def constraint(
        self, form: Format, definitions: Sequence[Mapping[str, Any]], prefix: str = ""
    ) -> GrammarSource[Any] | Constraint | None:
        """What the next message is held to: calls of these tools alone, an answer of this form; None for free text.

        Raises InvalidInput for tools where no calls are known for the model, or one that a grammar cannot hold.
        """
        if not self._is_in_message(form, bool(definitions)):
            return _AsText(self._held) if isinstance(self._held, GrammarSource) else self._held
        known = list(definitions)
        if self._last is not None and self._last[0] is form and self._last[1:3] == (known, prefix):
            return self._last[3]
        try:
            grammar = MessageGrammar(form.grammar(definitions, output=self._schema, prefix=prefix))
        except FormatError as error:
            raise InvalidInput(f"{error}; pass call_format to Context.open, or have no tools") from error
        self._last = form, known, prefix, grammar
        return grammar

    def read(self, text: str, form: Format, tools: bool) -> Out:
        """The value of an answer of an agent with or without tools. Raises OutputInvalid."""
        try:
            if isinstance(self._held, Typed) and self._held.words and self._is_in_message(form, tools):
                text = json.loads(text)  # beside calls, and after reasoning, words are JSON as well
            return cast(Out, self._asked.read(text))
        except (OutputIncomplete, ValueError) as error:
            raise OutputInvalid(f"the answer {shown(text)} is refused: {error}", text) from error

    def _is_in_message(self, form: Format, tools: bool) -> bool:
        """Is the answer a part of a message that may also have calls or reasoning?"""
        return tools or (self._schema is not None and form.thinking is not None)


@dataclass(frozen=True, slots=True)
class _AsText(GrammarSource[str]):
    """What an answer is held to. Its value is made once, by the round that asks again where it is refused."""

    held: GrammarSource[Any]

    @property
    def grammar(self) -> str:
        """What llguidance takes."""
        return self.held.grammar

    def read(self, text: str) -> str:
        """The text itself."""
        return text
