"""Bodies of `/v1/branches`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from agentkv_runtime.formats.thought import Markers, Place, Stage
from pydantic import AfterValidator, Field, StrictBool

from ..._types.sampling import Sampling
from ..._types.show import preview
from ...output import Grammar, JsonSchema, Regex
from ...output._thought import Thought
from ...output.grammar import MessageGrammar
from ..http.body import MOST_STOPS, Body
from ..http.body_errors import named, unsupported
from ..http.errors import ApiError, check_ids, error_param
from ..openai.chat_body import AnyMessage, check_properties, template_message
from .registry import OWN_NAMES

if TYPE_CHECKING:
    from .registry import BranchEntry


def _chosen(name: str) -> str:
    if name.startswith(OWN_NAMES):
        raise ValueError(f"names that begin with {OWN_NAMES} are the server's own; choose another one")
    return name


Text = Annotated[str, Field(max_length=1 << 20)]
Stops = Annotated[list[str], Field(max_length=MOST_STOPS)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Length = Annotated[int, Field(ge=0, lt=2**63)]
AMark = Annotated[str, Field(pattern=r"^[0-9]{1,18}:[0-9]{1,18}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"), AfterValidator(_chosen)]
"""Name that a client chooses; part of paths."""


class Condition(Body):
    """Precondition of a verb: it changes nothing if the branch has another length or mark."""

    if_length: Length | None = None
    if_mark: AMark | None = None

    @property
    def conditional(self) -> bool:
        """Whether a condition is set."""
        return self.if_length is not None or self.if_mark is not None

    def check(self, entry: BranchEntry) -> None:
        """Raises ApiError, with the branch's length and mark, if the condition does not hold."""
        length, mark = len(entry.branch), entry.mark
        for param, given, now in (("if_length", self.if_length, length), ("if_mark", self.if_mark, mark)):
            if given not in (None, now):
                what = f"{param} is {given}, but branch {entry.id} has {length} tokens, at mark {mark}; read it"
                raise ApiError("conflict", what, "condition_failed", param)


class PromptBody(Body):
    """A prompt: one of text, tokens and messages."""

    text: str | None = None
    tokens: list[int] | None = None
    messages: list[AnyMessage] | None = None
    template: dict[str, Any] | None = None

    @property
    def given_as(self) -> str:
        """Name of the parameter with the prompt."""
        names = ("tokens", "messages")
        return next((name for name in names if getattr(self, name) is not None), "text")

    def prompt(self, vocab_size: int) -> Any:
        """The prompt as the SDK takes it; None if there is none. Raises ApiError."""
        given = [each for each in (self.text, self.tokens, self.messages) if each is not None]
        if len(given) > 1:
            raise ApiError("invalid", "give one of text, tokens and messages", param="text")
        check_ids(self.tokens or (), vocab_size, "tokens")
        if self.messages is not None:
            return [template_message(message, index) for index, message in enumerate(self.messages)]
        return given[0] if given else None


class Create(PromptBody):
    """`POST /v1/branches`. Without a prompt the branch is empty. `name` becomes its id; it ends with its `lease`.
    `model` is one of several that the server has."""

    model: str | None = None
    name: Name | None = None
    lease: Name | None = None
    tools: list[dict[str, Any]] | None = None

    def check(self) -> None:
        """Raises ApiError for tools whose parameters are no object."""
        for index, tool in enumerate(self.tools or ()):
            function = tool.get("function", tool)
            parameters = function.get("parameters", {}) if isinstance(function, dict) else None
            if not isinstance(parameters, dict):
                what = f"tool {index} is {preview(tool)}, but it must have a function, whose parameters are an object"
                raise ApiError("invalid", what, "invalid_value", "tools")
            check_properties(parameters, f"tool {index}")


class LeaseBody(Body):
    """The path of a lease."""

    lease: Name


class ChosenName(Body):
    """The path of a branch that a client names."""

    name: Name


class Extend(PromptBody, Condition):
    """`POST .../extend`."""


class Fork(Condition):
    """`POST .../fork`: `n` children, or one for each of `names`. They have their parent's lease, or another one."""

    n: Annotated[int, Field(ge=1, le=256)] | None = None
    names: Annotated[list[Name], Field(min_length=1, max_length=256)] | None = None
    lease: Name | None = None

    @property
    def count(self) -> int:
        """Number of forks. Raises ApiError."""
        if self.names is None:
            return self.n or 1
        if self.n not in (None, len(self.names)):
            raise ApiError("invalid", f"n is {self.n}, but there are {len(self.names)} names; leave n out", param="n")
        return len(self.names)


class MarkBody(Condition):
    """`POST .../mark`."""

    name: Annotated[str, Field(min_length=1, max_length=64)]


class Rollback(Condition):
    """`POST .../rollback`: to one of length, name and mark."""

    length: Length | None = None
    name: str | None = None
    mark: AMark | None = None


class Adopt(Condition):
    """`POST .../adopt`."""

    other: str


class Select(Condition):
    """`POST .../select`."""

    choices: Annotated[list[str], Field(max_length=256)]


class StopBody(Body):
    """`POST .../stop`: ends the generation; with `length` the branch keeps at most that many tokens."""

    length: Length | None = None


class SteerBody(Body):
    """`POST .../steer`: words for the generation that runs."""

    text: Annotated[Text, Field(min_length=1)]
    at_once: bool = False


class Around(Body):
    """Markers around the reasoning."""

    opened: Annotated[str, Field(min_length=1, max_length=1024)]
    closed: Annotated[str, Field(min_length=1, max_length=1024)]
    before: Annotated[str, Field(max_length=1024)] = ""
    optional: bool = True


class ThinkingBody(Body):
    """Token budget and markers of a message's reasoning, and the state of a message that has begun, as sent by a
    connected Context. `in_message` says whether the grammar of the output covers the reasoning."""

    budget: Annotated[int, Field(ge=0, lt=2**31)] | None
    markers: Around
    begun: Literal["before", "inside", "behind", "answer"]
    tail: Annotated[str, Field(max_length=1024, pattern="^([0-9a-f]{2})*$")]
    in_message: bool

    def thought(self, held: Any) -> Thought:
        """Constraint of a message with reasoning around the constrained output."""
        if self.in_message and isinstance(held, Grammar):
            held = MessageGrammar(held.lark)
        begun = Place(Stage(self.begun), bytes.fromhex(self.tail))
        return Thought(self.budget, Markers(**self.markers.model_dump()), begun, held)


class OutputBody(Body):
    """Constraint of the output."""

    type: Literal["text", "json_schema", "regex", "grammar", "thinking"]
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    pattern: Annotated[Text, Field(max_length=1048576)] | None = None
    lark: Annotated[Text, Field(max_length=1048576)] | None = None
    thinking: ThinkingBody | None = None
    output: OutputBody | None = None

    def asked(self) -> Any:
        """The constraint as the SDK takes it. Raises ApiError."""
        with error_param("output"):
            return self._asked()

    def _asked(self) -> Any:
        match self:
            case OutputBody(type="thinking", thinking=ThinkingBody() as thinking):
                return thinking.thought(self.output and self.output._asked())
            case OutputBody(type="text", schema_=None, pattern=None, lark=None):
                return str
            case OutputBody(type="json_schema", schema_=schema, pattern=None, lark=None) if schema is not None:
                return JsonSchema(schema)
            case OutputBody(type="regex", schema_=None, pattern=str(pattern), lark=None):
                return Regex(pattern)
            case OutputBody(type="grammar", schema_=None, pattern=None, lark=str(lark)):
                return Grammar(lark)
        what = "schema goes with the type json_schema, pattern with regex, lark with grammar, thinking with thinking"
        raise ApiError("invalid", what, param="output")


class Generate(Condition):
    """`POST .../generate`: the options of the SDK's verb. With `stream` tokens are sent as they come."""

    max_tokens: Count = 256
    stop: Stops | None = None
    sampling: dict[str, Any] | None = None
    speculative: bool = True
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    thinking: StrictBool | Annotated[int, Field(ge=0, lt=2**31)] | None = None
    output: OutputBody | None = None
    stream: bool = False
    keep: Literal["read", "made"] = "read"

    def how(self) -> dict[str, Any]:
        """Keyword arguments for the SDK's verb. Raises ApiError and InvalidInput."""
        how: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "stop": self.stop,
            "sampling": None if self.sampling is None else sampling_of(self.sampling),
            "top_logprobs": self.top_logprobs,
            "thinking": self.thinking,
            "output": str if self.output is None else self.output.asked(),
        }
        return how if self.speculative else how | {"speculative": None}


def sampling_of(given: Mapping[str, Any]) -> Sampling:
    """Sampling parameters. JSON keys are text, so the token ids of `logit_bias` are parsed. Raises ApiError."""
    for name in given.keys() - Sampling.model_fields.keys():
        raise unsupported(f"sampling.{named(name)}", Sampling.model_fields)
    bias = given.get("logit_bias")
    if isinstance(bias, dict):
        read = {int(key) if key.isascii() and key.isdigit() and len(key) < 12 else key: bias[key] for key in bias}
        given = {**given, "logit_bias": read}
    with error_param("sampling"):
        return Sampling(**given)
