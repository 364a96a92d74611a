"""State of a chat: named branches and the operations on them, independent of the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import spec
from .._context.branch import Branch
from .._context.context import Context
from .._context.named_branches import NamedBranches
from .._storage.save import Saved
from .._types.errors import ContextFull, InvalidInput, PositionsExhausted
from .._types.message import Message
from ..agents.agent import Agent
from ..agents.stream import AgentStream
from ..agents.tool import Tool
from ..agents.trunks import tools_in_prompt

_NAME = re.compile(r"[^\s/]{1,40}")


class ChatSession:
    """Branches by name, one of them current after `begin` or `load`.

    Args:
        context: Context of the branches.
        agent: agent of new branches.
        tools: all available tools; those that the agent lacks are off.

    Attributes:
        tools: by name.
        current: name of the current branch.
    """

    def __init__(self, context: Context, agent: Agent[None, str], tools: Sequence[Tool[None, ..., Any]]) -> None:
        self.context = context
        self.tools = {tool.name: tool for tool in tools}
        self.current = ""
        self._agent = agent
        self._strategy = agent.speculative or spec.Suffix()
        self._branches: NamedBranches[Agent[None, str]] = NamedBranches()

    async def begin(self) -> None:
        """Starts an empty branch `main` and makes it current."""
        self.current = self._branches.add("main", await self._agent.trunk(self.context), self._agent).name

    @property
    def branch(self) -> Branch:
        """The current branch."""
        return self._branches.get(self.current).branch

    @property
    def agent(self) -> Agent[None, str]:
        """The agent of the current branch."""
        return self._branches.get(self.current).data

    @property
    def system(self) -> str:
        """The system prompt of the current branch."""
        return _system(self.branch)

    @property
    def names(self) -> list[str]:
        """Names of all branches, oldest first."""
        return self._branches.names()

    def ask(self, message: str) -> AgentStream[str]:
        """Starts a turn on the current branch. If it is stopped, the branch keeps the part that was read."""
        return self.agent.stream(self.branch, message, keep_partial=True)

    async def clear(self) -> None:
        """Replaces the current branch by an empty one; the others stay."""
        await self._put(await self.agent.trunk(self.context), self.agent)

    async def fork(self, name: str | None = None) -> str:
        """Forks the current branch and makes the fork current. Raises InvalidInput for an invalid or taken name."""
        chosen = self._free(name)
        self._branches.add(chosen, await self.branch.fork(), self.agent, self.current)
        self.current = chosen
        return chosen

    def switch(self, name: str) -> None:
        """Makes another branch current. Raises InvalidInput for an unknown name."""
        self.current = self._branches.get(name).name

    async def rollback(self, turns: int) -> str:
        """Takes back the last `turns` questions with their answers; returns the first of these. Raises InvalidInput."""
        asked = [message for message in self.branch.messages if message.role == "user"]
        if not asked:
            raise InvalidInput("nothing was asked on this branch that could be taken back")
        if not 1 <= turns <= len(asked):
            raise InvalidInput(f"{turns} questions are to be taken back, but this branch has {len(asked)}")
        await self.branch.rollback(asked[-turns].start)
        return asked[-turns].content

    async def close(self, name: str) -> None:
        """Closes a branch. Raises InvalidInput for the current one and for an unknown name."""
        if name == self.current:
            raise InvalidInput("this is the current branch; /switch to another one first")
        await self._branches.close(name)

    def tree(self) -> list[tuple[int, str, Branch]]:
        """Depth, name and branch of all branches, each after its parent."""
        return [(depth, entry.name, entry.branch) for depth, entry in self._branches.tree()]

    async def instruct(self, system: str) -> int:
        """Changes the system prompt of the current branch and prefills its conversation again.

        Returns the number of its oldest messages that no longer fit.
        """
        return await self._become(replace(self.agent, instructions=system))

    async def turn(self, name: str, *, on: bool) -> int:
        """Turns a tool of the current branch on or off and prefills its conversation again. Raises InvalidInput.

        Returns the number of its oldest messages that no longer fit.
        """
        if name not in self.tools:
            raise InvalidInput(f"there is no tool {name!r}; there are: {', '.join(self.tools) or 'none'}")
        tools = [tool for tool in self.agent.tools if tool.name != name]
        return await self._become(replace(self.agent, tools=[*tools, self.tools[name]] if on else tools))

    def speculate(self, on: bool) -> None:
        """Turns drafts on or off, on all branches: by the strategy of the first agent, or from earlier text."""
        strategy = self._strategy if on else None
        self._agent = replace(self._agent, speculative=strategy)
        for entry in self._branches:
            entry.data = replace(entry.data, speculative=strategy)

    async def save(self, path: Path) -> Saved:
        """Saves all branches to one file, by their paths in the tree, the current one last. Raises as `Context.save`
        does."""
        entries = sorted(self._branches, key=lambda entry: entry.name == self.current)
        return await self.context.save(path, {self._branches.path(entry.name): entry.branch for entry in entries})

    async def load(self, path: Path) -> list[str]:
        """Loads the branches of a file and makes its last one current. Raises as `Context.load_all` does."""
        loaded = await self.context.load_all(path)
        chosen: dict[str, str] = {}
        for at, branch in loaded.items():
            leaf = at.rpartition("/")[2] or at
            chosen[at] = leaf if leaf not in self._branches else self._branches.free_name(f"{leaf}-")
            self._branches.add(chosen[at], branch, self._agent_of(branch))
        for at, name in chosen.items():
            self._branches.get(name).parent = chosen.get(at.rpartition("/")[0])
        self.current = list(chosen.values())[-1]
        return list(chosen.values())

    def lacking(self) -> list[str]:
        """Tools in the prompt of the current branch that are not available here, as a loaded branch may have."""
        return [name for name in tools_in_prompt(self.branch) if name not in self.tools]

    def _agent_of(self, branch: Branch) -> Agent[None, str]:
        on = [self.tools[name] for name in tools_in_prompt(branch) if name in self.tools]
        return replace(self._agent, instructions=_system(branch), tools=on)

    async def _become(self, agent: Agent[None, str]) -> int:
        said = _whole(self.branch.messages)
        fresh = await agent.trunk(self.context)
        try:
            fitting = await _read(fresh, said)
        except BaseException:
            fresh.close()
            raise
        await self._put(fresh, agent)
        return len(said) - len(fitting)

    async def _put(self, fresh: Branch, agent: Agent[None, str]) -> None:
        """Replaces the current branch and its agent, even if the caller is cancelled while the old one closes."""
        entry = self._branches.get(self.current)
        before, entry.branch, entry.data = entry.branch, fresh, agent
        await before.close()

    def _free(self, name: str | None) -> str:
        if name is None:
            return self._branches.free_name("fork-")
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no name for a branch: one word without '/', of at most 40 characters")
        if name in self._branches:
            raise InvalidInput(f"there is a branch {name!r} already; /switch {name} goes there")
        return name


async def _read(branch: Branch, said: Sequence[Message]) -> Sequence[Message]:
    """Extends a branch by the messages, without the oldest turns that do not fit; returns the messages that it has.

    Raises ContextFull or PositionsExhausted where the last question does not fit.
    """
    while said:
        try:
            await branch.extend(said)
            break
        except (ContextFull, PositionsExhausted):
            later = [i for i, message in enumerate(said) if i and message.role == "user"]
            if not later:
                raise
            said = said[later[0] :]
    return said


def _system(branch: Branch) -> str:
    return next((message.content for message in branch.messages if message.role == "system"), "")


def _whole(messages: Sequence[Message]) -> list[Message]:
    """Messages without the system prompt and without empty answers, which no template takes."""
    said = (message for message in messages if message.role != "system")
    return [message for message in said if message.content or message.calls or message.role != "assistant"]
