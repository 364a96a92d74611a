"""Body of `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema

from ..._chat.messages import checked_template
from ..._types.show import preview
from ...output import JsonSchema
from ..completion import ROLES, ReplyRequest
from ..http.body import Body
from ..http.errors import ApiError, error_param
from .sampling_body import SamplingBody, Stop, stops_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class Function(Body):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # calls are always constrained to their schema


class ChatToolBody(Body):
    """A function tool."""

    type: Literal["function"]
    function: Function

    def definition(self) -> dict[str, Any]:
        """Definition of the tool for chat templates."""
        return definition_of(self.function.name, self.function.description, self.function.parameters)


class Named(Body):
    """Name of a function."""

    name: Name


class OneTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: Named


class Schema(Body):
    """JSON schema of the content."""

    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = Field(default_factory=dict)
    strict: bool | None = None


class ChatFormatBody(Body):
    """Format of the content."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None

    def schema_of_content(self) -> Mapping[str, Any] | None:
        """JSON schema of the content; None for free text. Raises ApiError, also for a schema that no grammar can
        express."""
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ApiError("invalid", "json_schema goes with the type json_schema", param="response_format")
        if self.type == "text":
            return None
        schema = {"type": "object"} if self.json_schema is None else self.json_schema.schema_
        with error_param("response_format"):
            return JsonSchema(schema).schema


class ChatStreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


_TEXT_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}
_MESSAGE: dict[str, Any] = {  # the SDK validates messages, with better errors
    "type": "object",
    "properties": {
        "role": {"enum": ["developer", *ROLES]},
        "content": {"anyOf": [{"type": "string"}, _TEXT_PARTS, {"type": "null"}]},
        "reasoning_content": {"type": "string"},
        "reasoning": {"type": "string"},
        "thinking": {"type": "string"},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": {"type": "string"},
        "name": {"type": "string"},
    },
    "required": ["role"],
}


class ChatMessageBody(Body):
    """A message of the conversation."""

    role: Any
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    name: Any = None


AnyMessage = Annotated[ChatMessageBody, WithJsonSchema(_MESSAGE)]


def _of_a_stream(options: object, others: ValidationInfo) -> object:
    if options is not None and not others.data.get("stream"):
        raise ValueError("it goes with stream: true")
    return options


OfAStream = AfterValidator(_of_a_stream)


class ChatRequest(SamplingBody):
    """A request for a chat completion. Fields that change nothing here, such as `user`, are accepted and not used."""

    model: str
    messages: Annotated[list[AnyMessage], Field(min_length=1)]
    tools: list[ChatToolBody] | None = None
    tool_choice: Literal["auto", "none", "required"] | OneTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ChatFormatBody | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Count | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: Annotated[ChatStreamOptions | None, OfAStream] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    return_progress: bool | None = None  # llama.cpp's: chunks with `prompt_progress`, in a stream
    store: bool | None = None  # nothing is stored here: there is no address to get it from
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def asked(self, vocab_size: int) -> ReplyRequest:
        """The request, independent of the protocol. Raises ApiError."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError("invalid", "top_logprobs goes with logprobs: true", param="top_logprobs")
        choice = self.tool_choice or "auto"
        return ReplyRequest(
            messages=[template_message(message, index) for index, message in enumerate(self.messages)],
            tools=[tool.definition() for tool in self.tools or ()],
            choice=choice if isinstance(choice, str) else choice.function.name,
            parallel=self.parallel_tool_calls is not False,
            schema=None if self.response_format is None else self.response_format.schema_of_content(),
            sampling=self.sampling(vocab_size),
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stop=stops_of(self.stop),
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
            template=self._template(),
            effort=self.reasoning_effort,
        )

    def _template(self) -> dict[str, Any]:
        with error_param("chat_template_kwargs"):
            return checked_template(self.chat_template_kwargs, known=True)


def definition_of(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Definition of a tool for chat templates, many of which read the parameters' properties. Null fields are
    dropped."""
    said = {key: value for key, value in (parameters or {}).items() if value is not None}
    schema = {"type": "object", "properties": {}, **said}
    check_properties(schema, f"the tool {name!r}")
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": schema}}


def check_properties(parameters: Mapping[str, Any], whose: str) -> None:
    """Raises ApiError for properties that are no object, since chat templates iterate over them."""
    properties = parameters.get("properties", {})
    if not isinstance(properties, Mapping):
        what = f"parameters of {whose} have the properties {preview(properties)}, but they must be an object"
        raise ApiError("invalid", what, "invalid_value", "tools")


def template_message(message: ChatMessageBody, index: int) -> dict[str, Any]:
    """The message as chat templates take it. Templates print roles, so only known ones are accepted. Raises
    ApiError."""
    role = "system" if message.role == "developer" else message.role
    if role not in ROLES:
        told = f"the role {preview(message.role)} must be one of developer, {', '.join(ROLES)}"
        raise ApiError("invalid", told, "invalid_value", f"messages.{index}.role")
    given = {name: getattr(message, name) for name in ChatMessageBody.model_fields if name in message.model_fields_set}
    return {key: value for key, value in {**given, "role": role}.items() if value is not None or key == "content"}
