"""A turn of an agent: a question, rounds of messages and calls, an answer. A transaction on its branch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from .._errors import LimitReached
from .._generation import Usage
from .._hold import Hold
from .calling import Call, Desk
from .events import Finished, RolledBack
from .round import Round
from .run import MISSING, Run
from .step import Step

if TYPE_CHECKING:
    from .._branch import Branch
    from .._inputs import Prompt
    from .agent import Agent

Out = TypeVar("Out")
T = TypeVar("T")


class Turn(Generic[Out]):
    """One turn under way, and what was done in it so far.

    Attributes:
        agent: whose turn it is.
        desk: what its calls share.
        calls: those that the model wrote, in its order.
        rounds: messages that were begun.
        generated: tokens that were generated, those that were rolled back included.
        text: content of the last message.
        failed: what was done when something ended the turn early; nothing otherwise.
    """

    def __init__(self, agent: Agent[Any, Out], branch: Branch, desk: Desk) -> None:
        self.agent = agent
        self.desk = desk
        self.calls: list[Call] = []
        self.rounds = 0
        self.generated = 0
        self.text = ""
        self.failed: Run[Out] = Run("", (), (), Usage(len(branch), 0), 0, 0.0)
        self._branch = branch
        self._began = anyio.current_time()
        self._start = 0  # messages of the branch before the turn

    async def run(self, prompt: Prompt | None, keep: bool) -> Run[Out]:
        """The whole turn. Whatever ends it early leaves the branch where it was, unless it is to `keep`."""

        async def rounds(held: Branch) -> Run[Out]:
            if prompt is not None:
                await held.extend(prompt)
            while True:
                step = await Round(self, held).run()
                if step.done:
                    return self._so_far(held, step.output)

        run = await self._transaction(rounds, keep)
        await self.desk.emit(Finished(run))
        return run

    async def step(self, keep: bool) -> Step[Out]:
        """One round. Whatever ends it early leaves the branch where it was, unless it is to `keep`."""
        return await self._transaction(lambda held: Round(self, held).run(), keep)

    async def _transaction(self, work: Callable[[Branch], Awaitable[T]], keep: bool) -> T:
        try:
            async with Hold(self._branch, keep=keep) as held:
                self._start = len(held.messages)
                try:
                    return await self._in_time(work(held))
                except BaseException as error:
                    self.failed = self._so_far(held)
                    if isinstance(error, Exception):
                        with suppress(AttributeError):  # an exception of the user's that takes no attributes
                            error.run = self.failed  # type: ignore[attr-defined]
                    raise
        except Exception as error:
            if not keep:
                await self.desk.emit(RolledBack(len(self._branch), str(error)))
            raise

    async def _in_time(self, work: Awaitable[T]) -> T:
        seconds = self.agent.max_seconds
        with anyio.move_on_after(seconds):
            return await work
        raise LimitReached(f"the turn took longer than {seconds:g} s; pass a larger max_seconds, or ask for less")

    def _so_far(self, held: Branch, output: Any = MISSING) -> Run[Out]:
        return Run(
            text=self.text,
            calls=tuple(call.record for call in self.calls if call.record is not None),
            messages=tuple(held.messages[self._start :]),
            usage=Usage(max(len(held) - self.generated, 0), self.generated),
            rounds=self.rounds,
            seconds=anyio.current_time() - self._began,
            _output=output,
        )
