"""A call format: how the output of a model is read as a message, written, and held to the tools that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.answering import is_answer, with_answer
from agentkv_runtime.formats.call_spelling import tool_of
from agentkv_runtime.formats.dressed import DressedCalls
from agentkv_runtime.formats.fenced import FENCED
from agentkv_runtime.formats.lark import Lark
from agentkv_runtime.formats.parsed import CallClosed, ParsedMessage
from agentkv_runtime.formats.parser import MessageParser
from agentkv_runtime.formats.spelling import MOST_CALLS, NoCalls, Spelling, Wanted
from agentkv_runtime.formats.template import ResponseTemplate
from agentkv_runtime.formats.thought import Markers

__all__ = ["Choice", "Format"]

Choice = Literal["auto", "required", "none"] | str
"""Whether calls may, must or must not be made; or the name of the tool that must be called."""


@dataclass(frozen=True)
class Format:
    """How one model writes messages: reads them, writes them, and holds them to its tools. Immutable."""

    name: str
    template: ResponseTemplate
    """How output is read."""
    spelling: Spelling = field(default_factory=NoCalls)
    """How calls are spelled."""
    thinking: tuple[str, str] | None = None
    """What is around the reasoning, for models that reason."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of the tokenizer's added tokens, by what they spell."""
    ends: tuple[str, ...] = ()
    """What the tokens spell that end a generation: its text may come without them."""
    rescue: bool = False
    """Calls of known tools in another spelling are calls."""
    steered: bool = False
    """The model does not keep to the spelling: its calls are held to one that any model can write."""

    @property
    def writes_calls(self) -> bool:
        """Is it known how the model writes calls?"""
        return not isinstance(self.spelling, NoCalls)

    @property
    def is_generic(self) -> bool:
        """Is it a spelling of ours, which no template tells a model of?"""
        return self.spelling is FENCED

    def shown(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The tools that the model is told of: where each message is to be calls, answers are a tool, too."""
        return with_answer(tools) if self.is_generic else tools

    def parser(self, *, prefix: str = "", tools: Sequence[Mapping[str, Any]] = ()) -> MessageParser:
        """What reads one message.

        Args:
            prefix: the prompt, or what it holds of the reply: templates often write its beginning, such as `<think>`.
            tools: tool definitions; arguments that are written as bare text are cast to the types of their schemas.
        """
        tools = self.shown(tools)
        own = FENCED.dress if any(map(is_answer, tools)) else self.spelling.dress
        dressed = DressedCalls(tools, own=own) if tools and (self.rescue or own) else None
        return MessageParser(self.template, prefix=prefix, tools=tools, ends=self.ends, dressed=dressed)

    def parse(self, text: str, *, prefix: str = "", tools: Sequence[Mapping[str, Any]] = ()) -> ParsedMessage:
        """The message of a whole output, special tokens included."""
        parser = self.parser(prefix=prefix, tools=tools)
        parser.feed(text)
        return parser.finish()

    def write(self, content: str, calls: Sequence[tuple[str, Mapping[str, Any]]] = (), reasoning: str = "") -> str:
        """A message as the model would write it, and `parse` reads it. Reasoning is left out for models that have none.

        Raises FormatError for calls that it cannot write: several in a format of one, or beside content.
        """
        return self.spelling.write(content, calls, reasoning, self.thinking)

    @cached_property
    def thought(self) -> Markers | None:
        """Where in a message its reasoning is; None for models that do not reason."""
        return self.spelling.thought(self.thinking)

    @cached_property
    def call_ends(self) -> frozenset[str]:
        """The characters with which calls before the last become complete, found by writing two and reading them.

        Raises FormatError where it cannot write calls.
        """
        calls = [("name", {"key": "value"})] * (2 if self.spelling.several else 1)
        parser = self.parser()
        read = ((character, parser.feed(character)) for character in self.write("", calls))
        return frozenset(character for character, deltas in read if any(isinstance(d, CallClosed) for d in deltas))

    def grammar(
        self,
        definitions: Sequence[Mapping[str, Any]] = (),
        *,
        output: Mapping[str, Any] | None = None,
        choice: Choice = "auto",
        most_calls: int = MOST_CALLS,
        prefix: str = "",
    ) -> str:
        """A grammar for the next message, in llguidance's dialect of Lark.

        Text is free. A call, once its opening marker is written, is of a tool that there is, with arguments of its
        schema; after the calls the message ends.

        Args:
            definitions: of tools.
            output: the JSON schema of a message that makes no calls; None for free text.
            choice: "auto", "required" (the message is calls), "none", or the name of a tool, which is called once.
            most_calls: so many calls may a message make.
            prefix: as `parser` takes it.

        Raises:
            FormatError: a tool that is not there, or calls in a format whose spelling is not known.
        """
        definitions = self.shown(definitions)
        answers = any(map(is_answer, definitions))
        known = {tool.name: tool for tool in map(tool_of, (d for d in definitions if not is_answer(d)))}
        if choice not in ("auto", "required", "none"):
            if choice not in known:
                may = f"auto, required, none, or the name of a tool: {', '.join(known)}"
                raise FormatError(f"choice is {choice!r}, but it must be {may}")
            known, most_calls = {choice: known[choice]}, 1
        tools = [] if choice == "none" else list(known.values())
        if choice == "required" and not tools:
            raise FormatError("calls are required, but there is no tool to call")
        wanted = Wanted(
            tools,
            text=choice in ("auto", "none"),
            output=output,
            most_calls=most_calls,
            thinking=self.thinking,
            in_reasoning=self.parser(prefix=prefix).in_reasoning,
            answers=answers,
            markers=self.spelling.markers,
        )
        lark = Lark(self.tokens)
        in_words = choice == "none" and bool(known) and self.rescue  # no call in any spelling
        spelling = FENCED if self.steered or answers or in_words else self.spelling
        lark.rule("start", spelling.message(lark, wanted))
        return str(lark)
