"""Runs cases with `kv.Agent` in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from .._types.errors import AgentKVError, LimitReached
from ..agents.agent import Agent
from ..agents.run_context import RunContext
from ..agents.tool import Tool
from .cases import Case, ToolDefinition
from .outcome import MAX_ROUNDS, Called, Outcome
from .worlds import World

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._context.context import Context
    from .._types.run import CallRecord


class AgentRunner:
    """Runs each case with an agent and a branch of its own; greedy.

    Args:
        context: Context of the model.
        max_tokens: token limit of one message.
        tool_choice: "auto" or "required" for a case's first message; later messages have "auto".
        options: further options of `kv.Agent`.
    """

    def __init__(self, context: Context, max_tokens: int, tool_choice: str, options: Mapping[str, Any]) -> None:
        self._context = context
        self._max_tokens = max_tokens
        self._tool_choice = tool_choice
        self._options = options

    async def answer(self, case: Case) -> Outcome:
        """Runs a case. Errors of the SDK become part of the outcome."""
        began = anyio.current_time()
        try:
            outcome = await self._answer(case)
        except AgentKVError as error:  # an error of the prompt: there is nothing to judge
            outcome = Outcome(error=_text(error))
        return replace(outcome, seconds=anyio.current_time() - began)

    async def _answer(self, case: Case) -> Outcome:
        world = None if case.world is None else World(case.world)
        agent = Agent[None, str](
            case.instructions,
            tools=[_noting(tool) for tool in case.tools] if world is None else world.tools,
            max_rounds=MAX_ROUNDS,
            max_message_tokens=self._max_tokens,
            max_tokens=self._max_tokens * MAX_ROUNDS,
            tool_choice=_first if self._tool_choice == "required" else "auto",
            **self._options,
        )
        async with await agent.trunk(self._context) as branch:
            await branch.extend(case.conversation)
            begin = len(branch)
            try:
                outcome = await _message(agent, branch) if world is None else await _turn(agent, branch)
            except AgentKVError as error:
                outcome = _stopped(error)
            raw = self._context.tokenizer.decode(branch.tokens[begin:], skip_special=False)
        return replace(outcome, raw=raw, state=None if world is None else world.state)


async def _message(agent: Agent[None, str], branch: Branch) -> Outcome:
    step = await agent.step(branch, keep_partial=True)
    return Outcome(tuple(map(_called, step.calls)), step.text, tokens=len(step.generation.tokens))


async def _turn(agent: Agent[None, str], branch: Branch) -> Outcome:
    run = await agent.run(branch, keep_partial=True)
    return Outcome(tuple(map(_called, run.calls)), run.text, tokens=run.usage.completion_tokens)


def _first(context: RunContext[Any]) -> str:
    return "auto" if context.calls else "required"


def _stopped(error: AgentKVError) -> Outcome:
    """Outcome of a turn that an error ended early. A limit is no error: the calls until then are judged."""
    limit = error.limit if isinstance(error, LimitReached) else None
    told = None if limit else _text(error)
    if (run := error.run) is None:
        return Outcome(stopped=limit, error=told)
    calls = tuple(map(_called, run.calls))
    return Outcome(calls, run.text, tokens=run.usage.completion_tokens, stopped=limit, error=told)


def _text(error: AgentKVError) -> str:
    return f"{type(error).__name__}: {error}"


def _called(call: CallRecord) -> Called:
    return Called(call.name, call.arguments, call.result, call.error, call.rescued)


async def _nothing(**arguments: Any) -> None:
    pass


def _noting(tool: ToolDefinition) -> Tool[Any, ..., Any]:
    return Tool(tool.name, tool.description, tool.parameters, _nothing)
