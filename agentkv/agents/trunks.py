"""Prompts of agents, prefilled once per Context and forked for each use."""

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


class TrunkCache:
    """Prefilled prompts of the agents of one Context, one under each adapter that an agent has had, each on a branch
    that lives as long as its agent is referenced.

    Those branches are not among `Context.branches`; `Context.keep` frees them.
    """

    def __init__(self) -> None:
        self._roots: weakref.WeakKeyDictionary[Agent[Any, Any], dict[int, _Root]] = weakref.WeakKeyDictionary()

    async def fork(self, agent: Agent[Any, Any], context: Context, definitions: Definitions, adapter: int) -> Branch:
        """Forks the branch with the agent's prompt, which is prefilled first where it is missing or outdated. `adapter`
        is the engine's id of the adapter that all of it is computed with."""
        root = self._roots.setdefault(agent, {}).setdefault(adapter, _Root())
        async with root.lock:  # tasks that come at the same time prefill once
            if root.branch is None or root.branch.closed or root.definitions != definitions:
                root.branch = await _prompt(agent, context, definitions, adapter)
                root.definitions = definitions
                core_of(context).registry.hide(root.branch)
            branch = await root.branch.fork()
        handle_of(branch).record.parent = None  # the branch that it was forked from is hidden
        return branch

    def close(self) -> None:
        """Frees all prompts; `fork` prefills them again."""
        for roots in self._roots.values():
            for root in roots.values():
                if root.branch is not None:
                    root.branch.close()


def tools_in_prompt(branch: Branch) -> list[str]:
    """Names of the tools in the branch's system prompt."""
    return [tool.get("function", tool).get("name") for tool in handle_of(branch).state.conversation.tools or ()]


def warn_missing_tools(branch: Branch, names: Iterable[str]) -> None:
    """Logs a warning that names an agent's tools missing from the branch's prompt: the model will hardly call them."""
    told = tools_in_prompt(branch)
    untold = [name for name in names if name not in told]
    if untold and handle_of(branch).state.conversation.begun:
        log.warning("the branch does not tell the model of all tools of its agent", branch=branch.id, untold=untold)


class _Root:
    """Branch with one agent's prompt, and the tool definitions in it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.branch: Branch | None = None
        self.definitions: Definitions = ()


async def _prompt(agent: Agent[Any, Any], context: Context, definitions: Definitions, adapter: int) -> Branch:
    """Prefills a new branch with the system prompt and the tools, as far as they precede every question."""
    switches = template_switches(agent.thinking, core_of(context).chat.tokenizer.template_variables)
    template = {**switches, **(agent.template or {})}
    update = await core_of(context).chat.encoder.opening(agent.instructions, definitions or None, template or None)
    return await prompted_branch(core_of(context), update, None, common=True, adapter=adapter)
