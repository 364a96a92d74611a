"""Agents as tools of other agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .run_context import RunContext
from .tool import Tool, tool

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .agent import Agent


def sub_agent(agent: Agent[Any, Any], name: str, description: str, fork: bool) -> Tool[Any, ..., Any]:
    """A tool that has an agent do a task; see `Agent.as_tool`."""

    async def ask(context: RunContext[Any], task: str) -> Any:
        """Asks.

        Args:
            task: what to do, in words that say all that is needed.
        """
        async with await (informed(context) if fork else agent.trunk(context.branch.context)) as branch:
            told = task
            if fork and agent.instructions not in ("", context.agent.instructions):
                told = f"{agent.instructions}\n\n{task}"
            run = await agent._run_for(context, branch, [{"role": "user", "content": told}])
            return run.output

    return tool(name=name, description=description)(ask)


async def informed(context: RunContext[Any]) -> Branch:
    """A fork of the caller's branch, as that was before the message that calls."""
    branch = await context.branch.fork()
    try:
        await branch.rollback(context._asked_at)
    except BaseException:
        branch.close()
        raise
    return branch
