"""A chat on named branches: what is done to them, whatever shows it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import spec
from .._branch import Branch
from .._context import Context
from .._errors import InvalidInput
from .._message import Message
from .._saving import Saved
from ..agents.agent import Agent
from ..agents.stream import AgentStream
from ..agents.tool import Tool

_NAME = re.compile(r"[^\s/]{1,40}")


class Talk:
    """Branches by name, one of them the current one. Made by `begin`.

    Attributes:
        context: theirs.
        agent: who answers: the system prompt, the tools that are on, how it samples and speculates.
        tools: all tools that there are, by name.
        current: name of the current branch.
    """

    def __init__(self, context: Context, agent: Agent[None, str], tools: Sequence[Tool[None, ..., Any]]) -> None:
        """Private: use `begin`."""
        self.context = context
        self.agent = agent
        self.tools = {tool.name: tool for tool in tools}
        self.current = ""
        self._branches: dict[str, Branch] = {}
        self._parents: dict[str, str] = {}

    @classmethod
    async def begin(cls, context: Context, agent: Agent[None, str], tools: Sequence[Tool[None, ..., Any]]) -> Talk:
        """A chat that nothing was said in yet, on the branch `main`; `tools` are off where the agent lacks them."""
        talk = cls(context, agent, tools)
        talk.current, talk._branches = "main", {"main": await agent.trunk(context)}
        return talk

    @property
    def branch(self) -> Branch:
        """The current one."""
        return self._branches[self.current]

    @property
    def system(self) -> str:
        """The system prompt of the current branch, which may be another than the agent's where it was loaded."""
        return next((message.content for message in self.branch.messages if message.role == "system"), "")

    @property
    def names(self) -> list[str]:
        """Of all branches, oldest first."""
        return list(self._branches)

    def ask(self, message: str) -> AgentStream[str]:
        """A turn on the current branch, which keeps what was read of it."""
        return self.agent.stream(self.branch, message, keep_partial=True)

    async def clear(self) -> None:
        """Begins the current branch anew; the others stay."""
        await self._put(await self.agent.trunk(self.context))

    async def fork(self, name: str | None = None) -> str:
        """Goes on on a fork of the current branch, at no cost. Raises InvalidInput for a name that is taken."""
        chosen = self._free(name)
        self._branches[chosen] = await self.branch.fork()
        self._parents[chosen] = self.current
        self.current = chosen
        return chosen

    def switch(self, name: str) -> None:
        """Raises InvalidInput for a name that no branch has."""
        if name not in self._branches:
            raise InvalidInput(f"there is no branch {name!r}; there are: {', '.join(self._branches)}")
        self.current = name

    async def rollback(self, turns: int) -> str:
        """Takes back the last so many questions and what was answered; the first of these. Raises InvalidInput."""
        asked = [message for message in self.branch.messages if message.role == "user"]
        if not 1 <= turns <= len(asked):
            raise InvalidInput(f"there are {len(asked)} questions to take back on this branch, not {turns}")
        await self.branch.rollback(asked[-turns].start)
        return asked[-turns].content

    async def close(self, name: str) -> None:
        """Closes a branch that is not the current one. Raises InvalidInput."""
        if name == self.current:
            raise InvalidInput("this is the current branch; /switch to another one first")
        if name not in self._branches:
            raise InvalidInput(f"there is no branch {name!r}; there are: {', '.join(self._branches)}")
        await self._branches.pop(name).close()
        parent = self._parents.pop(name, None)
        for kid in [kid for kid, of in self._parents.items() if of == name]:
            del self._parents[kid]
            if parent is not None:
                self._parents[kid] = parent

    def tree(self) -> list[tuple[int, str, Branch]]:
        """How deep each branch is below the first ones, its name, and it; each behind its parent."""
        found: list[tuple[int, str, Branch]] = []

        def walk(parent: str | None, depth: int) -> None:
            for name, branch in self._branches.items():
                if self._parents.get(name) == parent:
                    found.append((depth, name, branch))
                    walk(name, depth + 1)

        walk(None, 0)
        return found

    async def instruct(self, system: str) -> None:
        """Another system prompt, under which the conversation of the current branch is read again."""
        await self._become(replace(self.agent, instructions=system))

    async def turn(self, name: str, *, on: bool) -> None:
        """Turns a tool on or off; the conversation of the current branch is read again. Raises InvalidInput."""
        if name not in self.tools:
            raise InvalidInput(f"there is no tool {name!r}; there are: {', '.join(self.tools) or 'none'}")
        tools = [tool for tool in self.agent.tools if tool.name != name]
        await self._become(replace(self.agent, tools=[*tools, self.tools[name]] if on else tools))

    def speculate(self, on: bool) -> None:
        """Drafts from what was said before, or not."""
        self.agent = replace(self.agent, speculative=spec.PromptLookup() if on else None)

    async def save(self, path: Path) -> Saved:
        """All branches to one file. Raises as `Context.save` does."""
        return await self.context.save(path, self._branches)

    async def load(self, path: Path) -> list[str]:
        """Adds the branches of a file, and goes on with its last one. Raises as `Context.load_all` does."""
        loaded = await self.context.load_all(path)
        names = []
        for name, branch in loaded.items():
            chosen = name if name not in self._branches else self._free(None, name)
            self._branches[chosen] = branch
            names.append(chosen)
        self.current = names[-1]
        return names

    async def _become(self, agent: Agent[None, str]) -> None:
        said = [message for message in self.branch.messages if message.role != "system"]
        fresh = await agent.trunk(self.context)
        try:
            if said:
                await fresh.extend(_whole(said))
        except BaseException:
            fresh.close()
            raise
        await self._put(fresh)
        self.agent = agent

    async def _put(self, fresh: Branch) -> None:
        """In the place of the current branch."""
        await self.branch.close()
        self._branches[self.current] = fresh

    def _free(self, name: str | None, stem: str = "fork") -> str:
        if name is None:
            return next(each for n in itertools.count(1) if (each := f"{stem}-{n}") not in self._branches)
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no name for a branch: one word without '/', of at most 40 characters")
        if name in self._branches:
            raise InvalidInput(f"there is a branch {name!r} already; /switch {name} goes there")
        return name


def _whole(messages: Sequence[Message]) -> list[Message]:
    """Without an answer that was begun and is empty, which no template takes."""
    return [message for message in messages if message.content or message.calls or message.role != "assistant"]
