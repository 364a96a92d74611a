"""One completion, independent of the protocol: the requested message, and the branches of its choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.spelling import MOST_CALLS

from .._context.handle import handle_of
from .._model.generate_options import Thinking
from .._types.sampling import Sampling
from ..agents.steering import CHOICES
from ..output import JsonSchema
from ..output._schema_checks import refused_keyword
from ..output.grammar import MessageGrammar
from ..output.json_schema import grammar_of
from .http.errors import ApiError, advised

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format

    from .._context.branch import Branch, GenerateKwargs
    from .server import Server


ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRequest:
    """A request for one message of the model, or for several of the same prompt.

    Attributes:
        messages: the conversation, or its new messages; in OpenAI's form.
        tools: definitions in OpenAI's form.
        choice: "auto", "none", "required", or the name of the tool to call.
        parallel: whether the message may make several calls.
        schema: JSON schema of the content; None for free text.
        sampling: sampling parameters.
        max_tokens: maximum length of the message; None for as many as fit.
        stop: strings that end the message.
        logprobs: whether the log probability of each content token is reported.
        top_logprobs: number of likeliest tokens that are reported for each position.
        template: variables for the chat template.
        thinking: how much of the message may be reasoning, as `Branch.generate` takes it.
        effort: key of `EFFORTS`, used where `thinking` is None.
        grammar_tools: tools with the schemas that constrain calls, where these differ from the shown ones; else None.
        call_threshold: probability that a tool fits below which the message makes no call; None for no threshold.
        given_as: name of the parameter with the messages, for errors.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    parallel: bool = True
    schema: Mapping[str, Any] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    template: Mapping[str, Any] = field(default_factory=dict)
    thinking: Thinking = None
    effort: str | None = None
    grammar_tools: Sequence[Mapping[str, Any]] | None = None
    call_threshold: float | None = None
    given_as: str = "messages"

    def options(self, most: int) -> GenerateKwargs:
        """Options of its generation, which has `most` tokens where the request names no limit."""
        return {
            "max_tokens": self.max_tokens or most,
            "stop": list(self.stop) or None,
            "sampling": self.sampling,
            "top_logprobs": self.top_logprobs,
            "thinking": self.thinking,
        }

    def output_constraint(self, form: Format, prefix: str) -> Any:
        """Constraint of the message: calls of these tools only, content of that schema; `str` for free text.

        Raises ApiError for an unknown tool, and for a tool that no grammar can express.
        """
        if not self.tools and self.choice not in ("auto", "none"):
            raise ApiError("invalid", "tool_choice asks for a call, but there are no tools", param="tool_choice")
        names = [tool["function"]["name"] for tool in self.tools]
        if self.choice not in (*CHOICES, *names):
            may = "auto, required, none, or the name of a tool"
            what = f"tool_choice is {self.choice!r}, but it must be {may}: {', '.join(names)}"
            raise ApiError("invalid", what, param="tool_choice")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ApiError("invalid", f"two tools have the name {twice!r}; a call could mean either", param="tools")
        tools = self.tools if self.grammar_tools is None else self.grammar_tools
        if not tools and (self.schema is None or form.thinking is None):
            return str if self.schema is None else JsonSchema(self.schema)
        try:
            most = MOST_CALLS if self.parallel else 1
            return MessageGrammar(
                form.grammar(tools, output=self.schema, choice=self.choice, most_calls=most, prefix=prefix)
            )
        except FormatError as error:
            raise ApiError("invalid", advised(str(error)), param="tools") from error

    def check_tools(self) -> None:
        """Raises ApiError that names the tool whose parameters no grammar can express. It compiles each tool again, so
        callers use it after a failure."""
        for function in (tool["function"] for tool in self.tools):
            fault = refused_keyword(grammar_of({"additionalProperties": False, **function["parameters"]}))
            if fault is not None:
                what = f"calls of the tool {function['name']!r} cannot be held to its parameters: {fault}"
                raise ApiError("invalid", what, param="tools")


class Choices:
    """Async context manager: the branches of a request's choices, which are the prompt's own and forks. Call ids differ
    between choices."""

    def __init__(self, server: Server, branch: Branch, seed: int | None, count: int) -> None:
        self._server = server
        self._branch = branch
        self._seed = seed
        self._count = count
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> list[Branch]:
        branches = [self._branch]
        try:
            if self._count > 1:
                forks = await self._server.with_room(lambda: self._branch.fork(self._count - 1))
                for index, fork in enumerate(forks, 1):
                    self._stack.callback(fork.close)
                    said = handle_of(fork).state.conversation
                    handle_of(fork).state.set_conversation(replace(said, call_seed=f"{said.call_seed} choice {index}"))
                branches += forks
            if self._seed is not None:  # equal requests draw equal tokens
                for index, branch in enumerate(branches):
                    await branch.draw_as(index)
        except BaseException:
            await self._stack.aclose()
            raise
        return branches

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
