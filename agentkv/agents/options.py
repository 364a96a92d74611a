"""Options of agents and of their turns, and their checks."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from typing_extensions import TypedDict

from .._chat.messages import checked_template
from .._model.drafters import Inherit, Speculative
from .._model.generate_options import Thinking, checked_thinking
from .._types.checks import checked_count, checked_sampling, checked_share, checked_word
from .._types.errors import InvalidInput
from .._types.run import CallRecord
from .._types.show import preview
from .approval import Approve
from .run_context import RunContext
from .steering import Steer, ToolChoice
from .tool import Tool, check_seconds

if TYPE_CHECKING:
    from .._types.sampling import Sampling
    from .agent import Agent

BeforeRound: TypeAlias = Callable[[RunContext[Any]], Awaitable[None] | None]
AfterCall: TypeAlias = Callable[[RunContext[Any], CallRecord], Awaitable[None] | None]


Style: TypeAlias = Literal["free", "plan"]
"""Form of messages: free, as the model writes them, or plan, each a list of calls."""


class Toolset(Protocol):
    """A source of tools that are listed at run time, such as a connection to a server."""

    async def tools(self) -> Sequence[Tool[Any, ..., Any]]:
        """Lists the tools that are available now."""
        ...


class AgentKwargs(TypedDict, total=False):
    """Keyword arguments of `Agent` beside tools and output, for type checkers."""

    max_rounds: int
    max_tokens: int
    max_message_tokens: int
    max_calls: int | None
    max_calls_per_message: int
    max_repeats: int
    max_seconds: float
    sampling: Sampling | None
    speculative: Speculative | Inherit | None
    toolsets: Sequence[Toolset]
    output_retries: int
    tool_choice: ToolChoice
    required: Sequence[str] | AbstractSet[str]
    call_threshold: float | None
    style: Style
    thinking: Thinking
    template: Mapping[str, Any] | None
    before_round: BeforeRound | None
    after_call: AfterCall | None


class RunKwargs(Steer, total=False):
    """Keyword arguments of `Agent.run` beside deps, for type checkers."""

    approve: Approve | None
    keep_partial: bool


def checked_tools(tools: object) -> tuple[Tool[Any, ..., Any], ...]:
    """The tools, or the one, as a tuple. Raises InvalidInput for an item that is no tool, and for two of one name."""
    items = tuple(tools) if isinstance(tools, list | tuple) else (tools,)
    names: set[str] = set()
    for item in items:
        if not isinstance(item, Tool):
            raise InvalidInput(f"tools have {preview(item)}, which is no tool; make it one with kv.tool")
        if item.name in names:
            raise InvalidInput(f"two tools are called {item.name}; give one of them another name: kv.tool(name=...)")
        names.add(item.name)
    return items


_LEAST = {"max_rounds": 1, "max_tokens": 1, "max_calls_per_message": 1, "max_repeats": 0, "output_retries": 0}


def check_limits(agent: Agent[Any, Any]) -> None:
    """Raises InvalidInput for a limit out of range, invalid sampling, or variables that no template takes."""
    for name, least in _LEAST.items():
        checked_count(getattr(agent, name), name, least)
    if agent.max_calls is not None:
        checked_count(agent.max_calls, "max_calls", 0)
    if agent.max_seconds != math.inf:
        check_seconds(agent.max_seconds, "max_seconds", zero=False)
    checked_word(agent.style, "style", ("free", "plan"))
    if agent.call_threshold is not None:
        checked_share(agent.call_threshold, "call_threshold")
    if agent.sampling is not None:
        checked_sampling(agent.sampling)
    checked_thinking(agent.thinking)
    checked_template(agent.template, known=True)


def check_hooks(**hooks: object) -> None:
    """Raises InvalidInput for a hook that is not callable."""
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise InvalidInput(f"{name} is {preview(hook)}, but it must be a function")
