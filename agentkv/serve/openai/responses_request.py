"""The body of `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from ...output import JsonSchema
from ..asked import Asked
from ..body import Body
from ..refused import Refused, about
from .chat_request import Count, Name, definition_of, template_of
from .response_items import messages_of, read_items
from .sampling import Drawn

LOGPROBS = "message.output_text.logprobs"

Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]


class FunctionTool(Body):
    """A function that the model may call. Calls are always held to its schema."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Body):
    """Which tool is to be called."""

    type: Literal["auto", "none", "required", "function"]
    name: Name | None = None


class Format(Body):
    """What the text is."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    def schema_of_content(self) -> Mapping[str, Any] | None:
        """None for free text. Raises Refused, also for a schema that a grammar cannot hold."""
        if (self.type == "json_schema") != (self.schema_ is not None and self.name is not None):
            raise Refused("invalid", "name and schema go with the type json_schema", param="text.format")
        if self.type == "text":
            return None
        with about("text.format"):
            return JsonSchema({"type": "object"} if self.schema_ is None else self.schema_).schema


class Text(Body):
    """How the text is to be."""

    format: Format | None = None


class Reasoning(Body):
    """How much the model thinks. What it thought is given as it is; nobody makes a summary of it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class StreamOptions(Body):
    """Of a stream."""

    include_obfuscation: Literal[False] = False


def _worded(choice: object) -> object:
    return {"type": choice} if isinstance(choice, str) else choice


class ResponsesRequest(Drawn):
    """What a client asks for. Fields that change nothing here, such as `user`, are taken and not used."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Annotated[ToolChoice | None, BeforeValidator(_worded)] = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Count | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def stored(self) -> bool:
        """Is the response kept for those that come later?"""
        return self.store is not False

    @property
    def logprobs(self) -> bool:
        """Are they asked for?"""
        return LOGPROBS in (self.include or ())

    def items(self) -> list[dict[str, Any]]:
        """The input as items. Raises Refused for what none is."""
        if isinstance(self.input, str):
            return read_items([{"role": "user", "content": self.input}])
        if not self.input:
            raise Refused("invalid", "input is empty; give a text, or one item at least", param="input")
        return read_items(self.input)

    def asked(self, items: list[dict[str, Any]], vocab_size: int) -> Asked:
        """What it asks of the model, its instructions left out. Raises Refused, InvalidInput."""
        if self.top_logprobs and not self.logprobs:
            raise Refused("invalid", f"top_logprobs goes with {LOGPROBS!r} in include", param="top_logprobs")
        if self.stream_options and not self.stream:
            raise Refused("invalid", "stream_options goes with stream: true", param="stream_options")
        form = self.text and self.text.format
        return Asked(
            messages=messages_of(items),
            tools=[definition_of(tool.name, tool.description, tool.parameters) for tool in self.tools or ()],
            choice=self._choice(),
            parallel=self.parallel_tool_calls is not False,
            schema=form.schema_of_content() if form else None,
            sampling=self.sampling(vocab_size),
            max_tokens=self.max_output_tokens,
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            template=template_of(self.reasoning.effort if self.reasoning else None, None),
            given_as="input",
        )

    def _choice(self) -> str:
        choice = self.tool_choice
        if choice is None:
            return "auto"
        if (choice.type == "function") != (choice.name is not None):
            raise Refused("invalid", "the name of a function goes with the type function", param="tool_choice")
        return choice.name or choice.type
