"""The prompts of agents, prefilled once per Context and forked ever after."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._aio.lock import Lock
from .._context.handle import core_of, handle_of
from .._context.prefill import prompted_branch
from .._context.thinking import template_switches
from .._types.log import log

if TYPE_CHECKING:
    from .._context.branch import Branch
    from .._context.context import Context
    from .agent import Agent

Definitions = Sequence[Mapping[str, Any]]


class Trunks:
    """Of one Context. Each agent's prompt is kept on a branch of its own, for as long as the agent is referred to.

    Those branches are not among `Context.branches`; `Context.keep` frees them.
    """

    def __init__(self) -> None:
        self._roots: weakref.WeakKeyDictionary[Agent[Any, Any], _Root] = weakref.WeakKeyDictionary()

    async def fork(self, agent: Agent[Any, Any], context: Context, definitions: Definitions) -> Branch:
        """A branch that holds the agent's prompt."""
        root = self._roots.setdefault(agent, _Root())
        async with root.lock:  # tasks that come at the same time prefill once
            if root.branch is None or root.branch.closed or root.definitions != definitions:
                root.branch = await _prompt(agent, context, definitions)
                root.definitions = definitions
                core_of(context).registry.hide(root.branch)
            branch = await root.branch.fork()
        handle_of(branch).record.parent = None  # what it was forked from is nobody's
        return branch

    def close(self) -> None:
        """Frees them all; they are made again when they are asked for."""
        for root in self._roots.values():
            if root.branch is not None:
                root.branch.close()


def told_tools(branch: Branch) -> list[str]:
    """Names of the tools that a branch's messages tell its model of."""
    return [tool.get("function", tool).get("name") for tool in handle_of(branch).state.conversation.tools or ()]


def warn_of_untold(branch: Branch, names: Iterable[str]) -> None:
    """Logs which tools of an agent a branch's messages do not tell its model of: it will hardly call them."""
    told = told_tools(branch)
    untold = [name for name in names if name not in told]
    if untold and handle_of(branch).state.conversation.begun:
        log.warning("the branch does not tell the model of all tools of its agent", branch=branch.id, untold=untold)


class _Root:
    """One agent's prompt."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.branch: Branch | None = None
        self.definitions: Definitions = ()


async def _prompt(agent: Agent[Any, Any], context: Context, definitions: Definitions) -> Branch:
    """A new branch with the system prompt and the tools, as much of them as stands before every question."""
    switches = template_switches(agent.thinking, core_of(context).chat.tokenizer.template_variables)
    template = {**switches, **(agent.template or {})}
    made = await core_of(context).chat.encoding.opening(agent.instructions, definitions or None, template or None)
    return await prompted_branch(core_of(context), made, None)
