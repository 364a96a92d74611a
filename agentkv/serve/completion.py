"""One completion in the terms of no protocol: the message that is asked for, and the branches of its choices."""

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
from .http.errors import Refused, advised

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format

    from .._context.branch import Branch
    from .server import Server


ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One message of the model's, or several of the same prompt.

    Attributes:
        messages: the conversation, or what it goes on with; in OpenAI's form.
        tools: definitions in OpenAI's form.
        choice: "auto", "none", "required", or the name of the tool that is to be called.
        parallel: may the message make several calls?
        schema: JSON schema of the content; None for free text.
        sampling: how tokens are drawn.
        max_tokens: of the message; None for as many as fit.
        stop: strings that end it.
        logprobs: is it reported how likely each token of the content was?
        top_logprobs: likely tokens that are reported for each place.
        template: variables for the chat template.
        thinking: how much of the message may be reasoning, as `Branch.generate` takes it.
        effort: the same as a word, for where `thinking` says nothing; one of `EFFORTS`.
        grammar_tools: the tools as calls are held to them, where that is less than the model is shown.
        call_threshold: the message makes no call where the model says with less probability that a tool fits.
        given_as: the parameter that the messages came in.
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

    def held(self, form: Format, prefix: str) -> Any:
        """What the message is held to: calls of these tools alone, content of that schema; `str` for free text.

        Raises Refused for a tool that is not there, or one that a grammar cannot hold.
        """
        if not self.tools and self.choice not in ("auto", "none"):
            raise Refused("invalid", "tool_choice asks for a call, but there are no tools", param="tool_choice")
        names = [tool["function"]["name"] for tool in self.tools]
        if self.choice not in (*CHOICES, *names):
            may = "auto, required, none, or the name of a tool"
            what = f"tool_choice is {self.choice!r}, but it must be {may}: {', '.join(names)}"
            raise Refused("invalid", what, param="tool_choice")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise Refused("invalid", f"two tools have the name {twice!r}; a call could mean either", param="tools")
        tools = self.tools if self.grammar_tools is None else self.grammar_tools
        if not tools and (self.schema is None or form.thinking is None):
            return str if self.schema is None else JsonSchema(self.schema)
        try:
            most = MOST_CALLS if self.parallel else 1
            return MessageGrammar(
                form.grammar(tools, output=self.schema, choice=self.choice, most_calls=most, prefix=prefix)
            )
        except FormatError as error:
            raise Refused("invalid", advised(str(error)), param="tools") from error

    def check_tools(self) -> None:
        """Raises Refused for a tool whose parameters a grammar cannot hold. For when one was refused: this compiles
        them anew, one by one."""
        for function in (tool["function"] for tool in self.tools):
            fault = refused_keyword(grammar_of({"additionalProperties": False, **function["parameters"]}))
            if fault is not None:
                what = f"calls of the tool {function['name']!r} cannot be held to its parameters: {fault}"
                raise Refused("invalid", what, param="tools")


class Choices:
    """The branches of a request's choices, for the length of a block: the prompt's own, and forks of it. No two have a
    call of the same id."""

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
                    handle_of(fork).state.converse(replace(said, calls_of=f"{said.calls_of} choice {index}"))
                branches += forks
            if self._seed is not None:  # the same request draws the same tokens again
                for index, branch in enumerate(branches):
                    await branch.draw_as(index)
        except BaseException:
            await self._stack.aclose()
            raise
        return branches

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
