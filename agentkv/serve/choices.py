"""Several answers to one prompt, which is prefilled once."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from .._handle import handle_of

if TYPE_CHECKING:
    from .._branch import Branch
    from .server import Server


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
