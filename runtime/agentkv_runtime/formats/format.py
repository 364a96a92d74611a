"""Call formats: parse a model's output into a message, write messages, and constrain calls to the given tools."""

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
"""Whether a message may, must or must not make calls; or the name of the tool that it must call."""


@dataclass(frozen=True)
class Format:
    """Format of one model's messages: parses, writes, and constrains them to the given tools. Immutable."""

    name: str
    template: ResponseTemplate
    """Response template that parses output."""
    spelling: Spelling = field(default_factory=NoCalls)
    """Spelling of calls."""
    thinking: tuple[str, str] | None = None
    """Opening and closing marker of the reasoning; None for models that do not reason."""
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of the tokenizer's added tokens, by what they spell."""
    ends: tuple[str, ...] = ()
    """Texts of the tokens that end a generation; the text of a generation may lack them."""
    rescue: bool = False
    """Whether calls of known tools in another spelling count as calls."""
    steered: bool = False
    """Whether calls are constrained to a spelling that any model can write, as the model does not keep to its own."""

    @property
    def writes_calls(self) -> bool:
        """Whether the spelling of calls is known."""
        return not isinstance(self.spelling, NoCalls)

    @property
    def is_generic(self) -> bool:
        """Whether the spelling is agentkv's own, which no chat template describes to the model."""
        return self.spelling is FENCED

    def shown(self, tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Tool definitions for the prompt; includes the answer function if every message must be calls."""
        return with_answer(tools) if self.is_generic else tools

    def parser(self, *, prefix: str = "", tools: Sequence[Mapping[str, Any]] = ()) -> MessageParser:
        """A parser for one message.

        Args:
            prefix: the prompt, or its part of the reply: templates often write its beginning, such as `<think>`.
            tools: tool definitions; arguments that are written as bare text are cast to the types of their schemas.
        """
        tools = self.shown(tools)
        own = FENCED.dress if any(map(is_answer, tools)) else self.spelling.dress
        dressed = DressedCalls(tools, own=own) if tools and (self.rescue or own) else None
        return MessageParser(self.template, prefix=prefix, tools=tools, ends=self.ends, dressed=dressed)

    def parse(self, text: str, *, prefix: str = "", tools: Sequence[Mapping[str, Any]] = ()) -> ParsedMessage:
        """Parses a complete output, special tokens included, into a message."""
        parser = self.parser(prefix=prefix, tools=tools)
        parser.feed(text)
        return parser.finish()

    def write(self, content: str, calls: Sequence[tuple[str, Mapping[str, Any]]] = (), reasoning: str = "") -> str:
        """Writes a message as the model would, readable by `parse`. Leaves out reasoning if the model has none.

        Raises FormatError for calls that the format does not allow: several, or calls beside content.
        """
        return self.spelling.write(content, calls, reasoning, self.thinking)

    @cached_property
    def thought(self) -> Markers | None:
        """Markers that locate the reasoning in a message; None for models that do not reason."""
        return self.spelling.thought(self.thinking)

    @cached_property
    def call_ends(self) -> frozenset[str]:
        """Characters that complete a call which is not the last, found by writing two calls and parsing them.

        Raises FormatError for a format that cannot write calls.
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

        Text is free. After the opening marker of a call, the grammar allows only the given tools, with arguments of
        their schemas; after the calls the message ends.

        Args:
            definitions: tool definitions.
            output: the JSON schema of a message that makes no calls; None for free text.
            choice: "auto", "required" (the message is calls), "none", or the name of a tool, which is called once.
            most_calls: largest number of calls in the message.
            prefix: as `parser` takes it.

        Raises:
            FormatError: for an unknown tool, or for calls in a format whose spelling is not known.
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
