"""Agents as tools of other agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._context.files import forked_views, give_views, rewind, take_files
from .._context.handle import handle_of
from .approval import approver_of
from .run_context import RunContext
from .tool import Tool, tool

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .agent import Agent


def sub_agent(agent: Agent[Any, Any], name: str, description: str, fork: bool) -> Tool[Any, ..., Any]:
    """Makes a tool that has the agent do a task; see `Agent.as_tool`."""

    async def ask(context: RunContext[Any], task: str) -> Any:
        """Asks.

        Args:
            task: what to do, in words that say all that is needed.
        """
        assert context._log is not None  # of a call
        left = await context._log.left_by_call(context.call_key, context.attempt)
        if left is not None:
            ask = context._ask or approver_of(None)
            return await left.output_of(agent, context.deps, ask, context.branch)
        async with await (fork_before_call(context) if fork else agent.trunk(context.branch.context)) as branch:
            caller, helper = handle_of(context.branch), handle_of(branch)
            if not fork:  # which has the caller's files as well
                give_views([helper], await forked_views(caller, 1))
            told = task
            if fork and agent.instructions not in ("", context.agent.instructions):
                told = f"{agent.instructions}\n\n{task}"
            run = await agent._run_for(context, branch, [{"role": "user", "content": told}])
            await take_files(caller, helper.record.view)
            return run.output

    return tool(name=name, description=description, idempotent=True)(ask)


async def fork_before_call(context: RunContext[Any]) -> Branch:
    """Forks the caller's branch at the point before the message that makes the call."""
    branch = await context.branch.fork()
    try:
        await rewind(handle_of(branch), context._asked_at)
    except BaseException:
        branch.close()
        raise
    return branch
