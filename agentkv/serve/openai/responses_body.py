"""Body of `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag

from ...output import JsonSchema
from ..completion import ReplyRequest
from ..http.body import Body
from ..http.errors import ApiError, error_param
from ..http.ignored import Ignored
from .chat_body import Count, Name, OfAStream, definition_of
from .items import messages_of, qualified, read_items
from .sampling_body import SamplingBody

LOGPROBS = "message.output_text.logprobs"

Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]


class FunctionTool(Body):
    """A function that the model may call. Calls are always constrained to its schema."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamespaceTool(Body):
    """Functions in a namespace. The model sees each under a name joined of both; calls report both."""

    type: Literal["namespace"]
    name: Name
    description: str = ""
    tools: list[FunctionTool]


def _kind(tool: object) -> str:
    """Tag of the union's member. Anything but a namespace is validated as a function, whose errors name the fault."""
    return "Namespace" if isinstance(tool, dict) and tool.get("type") == "namespace" else "Function"


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("Function")] | Annotated[NamespaceTool, Tag("Namespace")], Discriminator(_kind)
]


class ToolChoice(Body):
    """Whether and which tool the model calls."""

    type: Literal["auto", "none", "required", "function"]
    name: Name | None = None


class ResponseFormatBody(Body):
    """Format of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    def schema_of_content(self) -> Mapping[str, Any] | None:
        """JSON schema of the content; None for free text. Raises ApiError, also for a schema that no grammar can
        express."""
        if (self.type == "json_schema") != (self.schema_ is not None and self.name is not None):
            raise ApiError("invalid", "name and schema go with the type json_schema", param="text.format")
        if self.type == "text":
            return None
        with error_param("text.format"):
            return JsonSchema({"type": "object"} if self.schema_ is None else self.schema_).schema


class ResponseTextBody(Body):
    """Options of the text."""

    format: ResponseFormatBody | None = None


class Reasoning(Body):
    """Effort of the model's reasoning. Reasoning is returned whole; there are no summaries."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class ResponseStreamOptions(Body):
    """Options of a stream."""

    include_obfuscation: Literal[False] = False


def _worded(choice: object) -> object:
    return {"type": choice} if isinstance(choice, str) else choice


class ResponsesRequest(SamplingBody):
    """A request for a response. Fields that change nothing here, such as `user`, are accepted and not used."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[AnyTool] | None = None
    tool_choice: Annotated[ToolChoice | None, BeforeValidator(_worded)] = None
    parallel_tool_calls: bool | None = None
    text: ResponseTextBody | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Count | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: Annotated[ResponseStreamOptions | None, OfAStream] = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def stored(self) -> bool:
        """Whether the response is kept for later requests."""
        return self.store is not False

    @property
    def logprobs(self) -> bool:
        """Whether log probabilities are requested."""
        return LOGPROBS in (self.include or ())

    def functions(self) -> list[tuple[str, str | None, FunctionTool]]:
        """Name by which the model calls each function, its namespace or None, and the function."""
        functions: list[tuple[str, str | None, FunctionTool]] = []
        for tool in self.tools or ():
            if isinstance(tool, FunctionTool):
                functions.append((tool.name, None, tool))
            else:
                functions += [(qualified(tool.name, each.name), tool.name, each) for each in tool.tools]
        return functions

    def items(self, ignored: Ignored) -> list[dict[str, Any]]:
        """The input as items. Raises ApiError for anything else."""
        if isinstance(self.input, str):
            return read_items([{"role": "user", "content": self.input}], ignored)
        if not self.input:
            raise ApiError("invalid", "input is empty; give a text, or one item at least", param="input")
        return read_items(self.input, ignored)

    def asked(self, items: list[dict[str, Any]], vocab_size: int) -> ReplyRequest:
        """The request, independent of the protocol and without its instructions. Raises ApiError and InvalidInput."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError("invalid", f"top_logprobs goes with {LOGPROBS!r} in include", param="top_logprobs")
        form = self.text and self.text.format
        return ReplyRequest(
            messages=messages_of(items),
            tools=[definition_of(name, tool.description, tool.parameters) for name, _, tool in self.functions()],
            choice=self._choice(),
            parallel=self.parallel_tool_calls is not False,
            schema=form.schema_of_content() if form else None,
            sampling=self.sampling(vocab_size),
            max_tokens=self.max_output_tokens,
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            effort=self.reasoning.effort if self.reasoning else None,
            given_as="input",
        )

    def _choice(self) -> str:
        choice = self.tool_choice
        if choice is None:
            return "auto"
        if (choice.type == "function") != (choice.name is not None):
            raise ApiError("invalid", "the name of a function goes with the type function", param="tool_choice")
        return choice.name or choice.type
