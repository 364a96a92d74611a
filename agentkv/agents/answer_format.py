"""Constraints on an agent's messages, and the parser of its answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.answering import ANSWER_NAME, with_answer

from .._types.errors import InvalidInput, OutputIncomplete, OutputInvalid
from .._types.show import preview
from ..output import Constraint, Grammar, JsonSchema
from ..output._spec import output_spec
from ..output._tool_schemas import grammar_tools, say_loosened
from ..output._typed import Typed
from ..output.grammar import GrammarSource, MessageGrammar
from .steering import CallRules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentkv_runtime.formats import Format

    from .tool import Tool

Out = TypeVar("Out")

ANYTHING = CallRules()
ANSWER_NOW = "Now answer my question in words."
"""Message for a model that keeps making calls instead of answering."""
VALUE_NOW = "Now answer my question."
"""The same, where the answer is a value."""


class AnswerFormat(Generic[Out]):
    """Form of an agent's answers: text, a type, or a grammar. Raises InvalidInput for any other `output`."""

    def __init__(self, output: object, most_calls: int, plans: bool = False) -> None:
        self._spec = output_spec(output)
        self._constraint = self._spec.constraint
        self._schema = self._constraint.schema if isinstance(self._constraint, Typed | JsonSchema) else None
        self._grammars_for: tuple[Format, tuple[Tool[Any, ..., Any], ...]] | None = None
        self._grammars: dict[tuple[CallRules, str], Grammar] = {}  # for `_grammars_for`, by rules and prefix
        self._most_calls = most_calls
        self._plans = plans  # an answer is one more function to call

    @property
    def request(self) -> str:
        """The message that asks a model for its answer, near the end of a turn."""
        return ANSWER_NOW if self._constraint is None else VALUE_NOW

    @property
    def is_text(self) -> bool:
        """Whether answers are free text."""
        return self._constraint is None and not self._plans

    def definitions(self, tools: Sequence[Tool[Any, ..., Any]]) -> list[Mapping[str, Any]]:
        """Tool definitions for the prompt; with style "plan" including the answer. Raises InvalidInput on its name."""
        definitions: list[Mapping[str, Any]] = [tool.definition for tool in tools]
        if not self._plans:
            return definitions
        if any(tool.name == ANSWER_NAME for tool in tools):
            raise InvalidInput(
                f"a tool is called {ANSWER_NAME}, as answers are with style='plan'; give it another name: "
                "kv.tool(name=...)"
            )
        return with_answer(definitions)

    def check(self, tools: bool) -> None:
        """Raises InvalidInput where an answer could not be distinguished from calls."""
        if tools and self._constraint is not None and self._schema is None:
            raise InvalidInput(
                f"output is {preview(self._constraint)}, but an agent with tools answers with text, a type or a "
                "kv.JsonSchema; have an agent without tools make this one"
            )

    def constraint(
        self, form: Format, tools: tuple[Tool[Any, ..., Any], ...], prefix: str = "", rules: CallRules = ANYTHING
    ) -> GrammarSource[Any] | Constraint | None:
        """Constraint for the next message: calls of these tools or an answer of this form; None for free text.

        Raises InvalidInput for tools where the model's call format is not known.
        """
        if not self._is_in_message(form, bool(tools)):
            return _AsText(self._constraint) if isinstance(self._constraint, GrammarSource) else self._constraint
        if self._grammars_for != (form, tools):
            self._grammars_for, self._grammars = (form, tools), {}
        if (rules, prefix) not in self._grammars:
            self._grammars[rules, prefix] = self._grammar(form, tools, prefix, rules)
        return self._grammars[rules, prefix]

    def _grammar(self, form: Format, tools: tuple[Tool[Any, ..., Any], ...], prefix: str, rules: CallRules) -> Grammar:
        allowed = [tool.definition for tool in tools if rules.choice == "none" or rules.allows(tool.name)]
        most = self._most_calls if rules.max_calls is None else min(self._most_calls, rules.max_calls)
        try:
            definitions = grammar_tools(form, allowed, say_loosened)
            if self._plans:
                definitions = with_answer(definitions)
            return MessageGrammar(
                form.grammar(definitions, output=self._schema, choice=rules.choice, most_calls=most, prefix=prefix)
            )
        except FormatError as error:
            raise InvalidInput(f"{error}; pass call_format to Context.open, or have no tools") from error

    def read(self, text: str, form: Format, tools: bool) -> Out:
        """Parses an answer. Raises OutputInvalid for one that is empty or that its type refuses."""
        try:
            if isinstance(self._constraint, Typed) and self._constraint.words and self._is_in_message(form, tools):
                text = json.loads(text)  # beside calls, and after reasoning, words are JSON as well
            if self._constraint is None and not text.strip():
                raise ValueError("it is empty")
            return cast(Out, self._spec.read(text))
        except (OutputIncomplete, ValueError) as error:
            raise OutputInvalid(f"the answer {preview(text)} is refused: {error}", text) from error

    def _is_in_message(self, form: Format, tools: bool) -> bool:
        """Whether the answer is part of a message that may also have calls or reasoning."""
        return tools or (self._schema is not None and form.thinking is not None)


@dataclass(frozen=True, slots=True)
class _AsText(GrammarSource[str]):
    """Grammar of an answer, read as text. The round parses the value itself, as it retries where that is refused."""

    source: GrammarSource[Any]

    @property
    def grammar(self) -> str:
        """Grammar in llguidance's form."""
        return self.source.grammar

    def read(self, text: str) -> str:
        """The text itself."""
        return text
