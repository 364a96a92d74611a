"""Agents as tools of other agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from .._context.context import Context
from .._context.files import forked_views, give_views, rewind, take_files
from .._context.handle import core_of, handle_of
from .._context.model_pool import PooledModel
from .._types.checks import checked_bool
from .._types.errors import InvalidInput
from .._types.show import preview
from .approval import approver_of
from .run_context import RunContext
from .tool import Tool, tool

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._types.adapter import Adapter
    from .agent import Agent


@dataclass(frozen=True, slots=True)
class SubAgentPlace:
    """Where a sub-agent works.

    Attributes:
        fork: whether on a fork of the caller's branch, without a `context`.
        context: another Context, or a model of a pool; None for the caller's.
        adapter: its LoRA adapter; None for none, or for a fork the caller's.
    """

    fork: bool
    context: Context | PooledModel | None
    adapter: Adapter | None

    def __post_init__(self) -> None:
        """Raises InvalidInput, AdapterError."""
        checked_bool(self.fork, "fork")
        if isinstance(self.context, Context):
            core_of(self.context).adapters.checked(self.adapter)
        elif isinstance(self.context, PooledModel):
            if self.adapter is not None:
                raise InvalidInput(
                    "adapter is of a Context, and a model of a pool may be opened anew; leave it out, or pass an open "
                    "Context as context"
                )
        elif self.context is not None:
            raise InvalidInput(
                f"context is {preview(self.context)}, but it must be a Context, or one of kv.open_models: "
                "pool.model(name)"
            )

    def check_open(self) -> None:
        """Raises ContextClosed, WrongEventLoop for a Context that no call can use now; InvalidInput for a pool."""
        if isinstance(self.context, Context):
            core_of(self.context).loop.check_open()
        elif self.context is not None:
            self.context.check_open()

    @asynccontextmanager
    async def used(self, caller: Context) -> AsyncIterator[Context]:
        """The Context, which stays open for the length of a block where it is of a pool."""
        if isinstance(self.context, PooledModel):
            async with self.context.use() as context:
                yield context
        else:
            yield self.context or caller

    @asynccontextmanager
    async def branch(
        self, agent: Agent[Any, Any], context: Context, call: RunContext[Any]
    ) -> AsyncIterator[tuple[Branch, bool]]:
        """The branch to work on, closed behind the block; and whether it is a fork of the caller's."""
        forks = self.fork and self.context is None
        async with await (fork_before_call(call) if forks else agent.trunk(context, adapter=self.adapter)) as branch:
            if forks and self.adapter is not None:
                branch.adapter = self.adapter
            elif not forks:  # which has the caller's files as well
                give_views([handle_of(branch)], await forked_views(handle_of(call.branch), 1))
            yield branch, forks


@dataclass(frozen=True, eq=False)
class SubAgent(Tool[Any, ..., Any]):
    """A tool that has an agent do a task. Made by `Agent.as_tool`.

    Attributes:
        place: where the agent works.
    """

    place: SubAgentPlace = field(default=SubAgentPlace(True, None, None), repr=False, kw_only=True)


def sub_agent(agent: Agent[Any, Any], name: str, description: str, place: SubAgentPlace) -> SubAgent:
    """Makes a tool that has the agent do a task; see `Agent.as_tool`."""

    async def ask(call: RunContext[Any], task: str) -> Any:
        """Asks.

        Args:
            task: what to do, in words that say all that is needed.
        """
        async with place.used(call.branch.context) as context:
            return await _answer(agent, place, context, call, task)

    made = tool(name=name, description=description, idempotent=True)(ask)
    return SubAgent(**{each.name: getattr(made, each.name) for each in fields(made)}, place=place)


async def _answer(
    agent: Agent[Any, Any], place: SubAgentPlace, context: Context, call: RunContext[Any], task: str
) -> Any:
    """The agent's output for a task; a turn that the call began in an earlier process goes on."""
    assert call._log is not None  # of a call
    left = await call._log.left_by_call(call.call_key, call.attempt, core_of(context))
    if left is not None:
        ask = call._ask or approver_of(None)
        return await left.output_of(agent, call.deps, ask, call.branch)
    async with place.branch(agent, context, call) as (branch, forked):
        told = task
        if forked and agent.instructions not in ("", call.agent.instructions):
            told = f"{agent.instructions}\n\n{task}"
        run = await agent._run_for(call, branch, [{"role": "user", "content": told}])
        await take_files(handle_of(call.branch), handle_of(branch).record.view)
        return run.output


async def fork_before_call(context: RunContext[Any]) -> Branch:
    """Forks the caller's branch at the point before the message that makes the call."""
    branch = await context.branch.fork()
    try:
        await rewind(handle_of(branch), context._asked_at)
    except BaseException:
        branch.close()
        raise
    return branch
