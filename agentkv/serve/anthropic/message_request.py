"""The body of `POST /v1/messages`, and that of `POST /v1/messages/count_tokens`, which is its beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ..._generate_options import Thinking
from ..._sampling import Sampling
from ...output import JsonSchema
from ..asked import Asked
from ..body import MOST_STOPS, Body
from ..openai.chat_request import definition_of
from ..refused import Refused, about
from .blocks import CacheControl, Message, Texts
from .conversation import openai_messages

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class Tool(Body):
    """A tool of the client's own."""

    type: Literal["custom"] | None = None  # first: others than the client's own are refused by this name
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    cache_control: CacheControl | None = None
    strict: bool | None = None  # calls are always held to their schema
    eager_input_streaming: bool | None = None  # a call always comes once it is complete
    defer_loading: Literal[False] | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class Choosing(Body):
    """Whether tools are called."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class ChoosingOne(Body):
    """The tool that must be called."""

    type: Literal["tool"]
    name: ToolName
    disable_parallel_tool_use: bool = False


class ThinkingOff(Body):
    """The model answers at once."""

    type: Literal["disabled"]


class ThinkingOn(Body):
    """The model thinks first, as long as it likes within `max_tokens`."""

    type: Literal["adaptive"]
    display: Literal["summarized"] | None = None  # what it thought is shown whole


class ThinkingBounded(Body):
    """The model thinks for so many tokens at most."""

    type: Literal["enabled"]
    budget_tokens: Count
    display: Literal["summarized"] | None = None


class Format(Body):
    """What the text of the answer is."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]

    def schema_of_content(self) -> Mapping[str, Any]:
        """Raises Refused for a schema that a grammar cannot hold."""
        with about("output_config.format"):
            return JsonSchema(self.schema_).schema


class Output(Body):
    """Of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class Metadata(Body):
    """Of the request; it is taken and not used."""

    user_id: str | None = None


class CountRequest(Body):
    """A conversation, whose tokens are counted."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Texts = Field(default_factory=list)
    tools: list[Tool] | None = None
    tool_choice: Annotated[Choosing | ChoosingOne, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingOff | ThinkingOn | ThinkingBounded, Field(discriminator="type")] | None = None
    output_config: Output | None = None
    cache_control: CacheControl | None = None

    @property
    def effort(self) -> str | None:
        """How much the model is to think, and to say."""
        return None if self.output_config is None else self.output_config.effort

    def asked(self) -> Asked:
        """What it asks of the model. Raises Refused, also for a schema that a grammar cannot hold."""
        choice = self.tool_choice
        form = None if self.output_config is None else self.output_config.format
        return Asked(
            messages=openai_messages(self.system, self.messages),
            tools=[definition_of(tool.name, tool.description, tool.input_schema) for tool in self.tools or ()],
            choice=_choice(choice),
            parallel=choice is None or not choice.disable_parallel_tool_use,
            schema=None if form is None else form.schema_of_content(),
            thinking=self._thinking(),
            effort=self.effort,
        )

    def check_budget(self) -> None:
        """Raises Refused where the thought leaves nothing for an answer. Here there is none."""

    def _thinking(self) -> Thinking:
        match self.thinking:
            case ThinkingOff():
                return False
            case ThinkingBounded(budget_tokens=budget):
                return budget
            case ThinkingOn() if self.effort is None:
                return True
        return None


class MessageRequest(CountRequest):
    """What a client asks for. Fields that change nothing here, such as `metadata`, are taken and not used."""

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

    def asked(self) -> Asked:
        """What it asks of the model. Raises Refused."""
        if self.thread is not None:  # by the code at which clients go on without
            told = "threads are not held here; send all messages, and those that were there before are recognised"
            raise Refused("invalid", told, "thread_unsupported_request", "thread")
        stop = self.stop_sequences or ()
        return replace(super().asked(), sampling=self.sampling, max_tokens=self.max_tokens, stop=stop)

    def check_budget(self) -> None:
        """Raises Refused where the thought leaves nothing for an answer."""
        match self.thinking:
            case ThinkingBounded(budget_tokens=budget) if budget >= self.max_tokens:
                told = f"max_tokens is {self.max_tokens}, but must be greater than thinking.budget_tokens, {budget}"
                raise Refused("invalid", told, param="thinking.budget_tokens")

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)


def _choice(choice: Choosing | ChoosingOne | None) -> str:
    match choice:
        case None:
            return "auto"
        case ChoosingOne():
            return choice.name
    return "required" if choice.type == "any" else choice.type
