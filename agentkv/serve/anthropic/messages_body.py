"""Bodies of `POST /v1/messages` and `/v1/messages/count_tokens`, and the content blocks of their messages.

Conversations are translated into OpenAI's form, which chat templates take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from ..._model.generate_options import Thinking as ThinkingOption
from ..._types.sampling import Sampling
from ...agents.tool_runner import text_of_error
from ...output import JsonSchema
from ..completion import ReplyRequest
from ..http.body import MOST_STOPS, Body
from ..http.errors import ApiError, error_param
from ..openai.chat_body import definition_of


class CacheControl(Body):
    """End of a prefix to cache. Each prefix is cached anyway, so it changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Body):
    """A content block of a message."""

    cache_control: CacheControl | None = None


class TextBlock(Block):
    """A text block."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class Caller(Body):
    """Caller of a tool: the model itself."""

    type: Literal["direct"]


class ToolUse(Block):
    """A tool call of the model."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: Any = None  # an object; other servers' models may have written anything
    caller: Caller | None = None


class Thinking(Block):
    """Reasoning of the model. Its signature has no meaning here: reasoning is plain text."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


def _blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Texts: TypeAlias = Annotated[list[TextBlock], BeforeValidator(_blocks)]
"""A string, or text blocks."""


class ToolResult(Block):
    """Result or error of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list)
    is_error: bool | None = None


AnyBlock: TypeAlias = Annotated[TextBlock | ToolUse | ToolResult | Thinking, Field(discriminator="type")]


class AnthropicMessageBody(Body):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[AnyBlock], BeforeValidator(_blocks)]


Placed = tuple[str, Block]
"""Path of a block in the request, and the block."""


def openai_messages(system: Sequence[TextBlock], messages: Sequence[AnthropicMessageBody]) -> list[dict[str, Any]]:
    """Translates the conversation into OpenAI's form. Adjacent messages of one role are joined.

    Raises ApiError for misplaced blocks, results without a call, and calls without a result.
    """
    made = [_text("system", system)] if system else []
    unanswered: dict[str, str] = {}  # ids of calls without a result yet, and their paths
    for role, turn in groupby(enumerate(messages), key=lambda each: each[1].role):
        blocks = [placed for index, message in turn for placed in _placed(index, message)]
        if role == "assistant":
            made.append(_assistant(blocks, unanswered))
            continue
        made += _others(role, blocks, unanswered)
        for name, where in unanswered.items():
            raise ApiError("invalid", f"the message after it has no tool_result for {name!r}", param=where)
    for name, where in unanswered.items():
        raise ApiError(
            "invalid", f"the last message calls a tool, and there is no tool_result for {name!r}", param=where
        )
    return made


def _placed(index: int, message: AnthropicMessageBody) -> list[Placed]:
    if not message.content and message.role != "assistant":
        raise ApiError("invalid", "it is empty; say something", param=f"messages.{index}.content")
    return [(f"messages.{index}.content.{number}", block) for number, block in enumerate(message.content)]


def _assistant(blocks: Sequence[Placed], unanswered: dict[str, str]) -> dict[str, Any]:
    """Translates an assistant's turn; its calls are added to `unanswered`."""
    thoughts, texts, calls = [], [], []
    for where, block in blocks:
        match block:
            case Thinking():
                thoughts.append(block.thinking)
            case TextBlock():
                texts.append(block.text)
            case ToolUse():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
                unanswered[block.id] = where
            case _:
                raise ApiError("invalid", "a result of a tool is the user's to tell", param=where)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _others(role: str, blocks: Sequence[Placed], unanswered: dict[str, str]) -> list[dict[str, Any]]:
    """Translates a turn of another role. Tool results become messages, and their calls leave `unanswered`."""
    made = []
    for kind, run in groupby(blocks, key=lambda placed: type(placed[1])):
        if kind is TextBlock:
            made.append(_text(role, [block for _, block in run]))
        else:
            made += [_result(role, where, block, unanswered) for where, block in run]
    return made


def _result(role: str, where: str, block: Block, unanswered: dict[str, str]) -> dict[str, Any]:
    if role != "user" or not isinstance(block, ToolResult):
        raise ApiError("invalid", f"it cannot stand in a message of the role {role!r}", param=where)
    if unanswered.pop(block.tool_use_id, None) is None:
        told = f"no tool_use before it waits for a result under the id {block.tool_use_id!r}"
        raise ApiError("invalid", told, param=f"{where}.tool_use_id")
    text = "".join(part.text for part in block.content)
    content = text_of_error(text or "it failed") if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _text(role: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Message of text blocks. A single block becomes a string, so that cache marks on changing blocks do not change the
    prompt."""
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    parts = [{"type": "text", "text": text} for text in texts]
    return {"role": role, "content": texts[0] if len(texts) == 1 else parts}


ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class AnthropicToolBody(Body):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None  # first: errors about foreign tools name this field
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    cache_control: CacheControl | None = None
    strict: bool | None = None  # calls are always constrained to their schema
    eager_input_streaming: bool | None = None  # a call always comes once it is complete
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class Choosing(Body):
    """Whether the model calls tools."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class ChoosingOne(Body):
    """The tool that must be called."""

    type: Literal["tool"]
    name: ToolName
    disable_parallel_tool_use: bool = False


class ThinkingOff(Body):
    """No reasoning."""

    type: Literal["disabled"]


class ThinkingOn(Body):
    """Reasoning without a budget of its own, within `max_tokens`."""

    type: Literal["adaptive"]
    display: Literal["summarized"] | None = None  # reasoning is shown whole


class ThinkingBounded(Body):
    """Reasoning of at most `budget_tokens` tokens."""

    type: Literal["enabled"]
    budget_tokens: Count
    display: Literal["summarized"] | None = None


class AnthropicFormatBody(Body):
    """Format of the answer's text."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]

    def schema_of_content(self) -> Mapping[str, Any]:
        """JSON schema of the content. Raises ApiError for a schema that no grammar can express."""
        with error_param("output_config.format"):
            return JsonSchema(self.schema_).schema


class OutputConfigBody(Body):
    """Effort and format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicFormatBody | None = None


class Metadata(Body):
    """Metadata of the request; accepted and not used."""

    user_id: str | None = None


class CountRequest(Body):
    """A conversation whose tokens are counted."""

    known_models: ClassVar[str | None] = "claude-"

    model: str
    messages: Annotated[list[AnthropicMessageBody], Field(min_length=1)]
    system: Texts = Field(default_factory=list)
    tools: list[AnthropicToolBody] | None = None
    tool_choice: Annotated[Choosing | ChoosingOne, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingOff | ThinkingOn | ThinkingBounded, Field(discriminator="type")] | None = None
    output_config: OutputConfigBody | None = None
    cache_control: CacheControl | None = None

    @property
    def effort(self) -> str | None:
        """Effort that the model spends on reasoning and answer; None if unset."""
        return None if self.output_config is None else self.output_config.effort

    def asked(self) -> ReplyRequest:
        """The request, independent of the protocol. Raises ApiError, also for a schema that no grammar can express."""
        choice = self.tool_choice
        form = None if self.output_config is None else self.output_config.format
        return ReplyRequest(
            messages=openai_messages(self.system, self.messages),
            tools=[definition_of(tool.name, tool.description, tool.input_schema) for tool in self.tools or ()],
            choice=_choice(choice),
            parallel=choice is None or not choice.disable_parallel_tool_use,
            schema=None if form is None else form.schema_of_content(),
            thinking=self._thinking(),
            effort=self.effort,
        )

    def check_budget(self) -> None:
        """Raises ApiError where the thinking budget leaves no tokens for an answer. Without `max_tokens` there is no
        limit."""

    def _thinking(self) -> ThinkingOption:
        match self.thinking:
            case ThinkingOff():
                return False
            case ThinkingBounded(budget_tokens=budget):
                return budget
            case ThinkingOn() if self.effort is None:
                return True
        return None


class MessageRequest(CountRequest):
    """A request for a message. Fields that change nothing here, such as `metadata`, are accepted and not used."""

    max_tokens: Count
    temperature: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    stop_sequences: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MOST_STOPS)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None
    thread: dict[str, Any] | None = None

    def asked(self) -> ReplyRequest:
        """The request, independent of the protocol. Raises ApiError."""
        if self.thread is not None:  # the error code after which clients retry without it
            told = "threads are not held here; send all messages, and those that were there before are recognised"
            raise ApiError("invalid", told, "thread_unsupported_request", "thread")
        stop = self.stop_sequences or ()
        return replace(super().asked(), sampling=self.sampling, max_tokens=self.max_tokens, stop=stop)

    def check_budget(self) -> None:
        """Raises ApiError where the thinking budget leaves no tokens for an answer."""
        match self.thinking:
            case ThinkingBounded(budget_tokens=budget) if budget >= self.max_tokens:
                told = f"max_tokens is {self.max_tokens}, but must be greater than thinking.budget_tokens, {budget}"
                raise ApiError("invalid", told, param="thinking.budget_tokens")

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)


def _choice(choice: Choosing | ChoosingOne | None) -> str:
    match choice:
        case None:
            return "auto"
        case ChoosingOne():
            return choice.name
    return "required" if choice.type == "any" else choice.type
