"""A turn of an agent: a question, rounds of messages and calls, an answer. A transaction on its branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from .._aio.scope import move_on_after
from .._errors import InvalidInput, LimitReached
from .._generation import Usage
from .._hold import Hold
from .._shown import said
from .calling import Call, Desk
from .events import Finished, RolledBack
from .repeats import Repeats
from .results import ERROR
from .round import Round
from .run import MISSING, Run
from .steering import Held, Steering
from .step import Step

if TYPE_CHECKING:
    from .._branch import Branch
    from .._inputs import Prompt
    from .agent import Agent
    from .events import Event

Out = TypeVar("Out")
T = TypeVar("T")


class Turn(Generic[Out]):
    """One turn under way, and what was done in it so far.

    Attributes:
        agent: whose turn it is.
        steering: what its messages are held to.
        tools: that the model was told of.
        definitions: of these.
        desk: what its calls share.
        repeats: knows which calls are made again.
        calls: those that the model wrote, in its order.
        rounds: messages that were begun.
        generated: tokens that were generated, those that were rolled back included.
        taken_back: of these, those that were rolled back in the turn.
        text: content of the last message, as far as it is there.
        keeps: what was done stays on the branch, whatever ends the turn early.
        failed: what was done when something ended the turn early; nothing otherwise.
    """

    def __init__(self, agent: Agent[Any, Out], branch: Branch, desk: Desk, steering: Steering) -> None:
        self.agent = agent
        self.steering = steering
        self.tools = tuple(desk.tools.values())
        self.definitions = [tool.definition for tool in self.tools]
        self.repeats = Repeats()
        self._observers = branch._loop.observers
        self.desk = replace(desk, observe=partial(self._observers.turn_told, self))
        self.calls: list[Call] = []
        self.rounds = 0
        self.generated = 0
        self.taken_back = 0
        self.text = ""
        self.keeps = False
        self.failed: Run[Out] = Run("", (), (), Usage(len(branch), 0), 0, 0.0)
        self._branch = branch
        self._began = anyio.current_time()
        self._start = 0  # messages of the branch before the turn
        self._done_before: list[str] = []  # tools that were called since the question, in turns that ended early
        self._hold: Hold | None = None

    async def run(self, prompt: Prompt | None, keep: bool) -> Run[Out]:
        """The whole turn. Whatever ends it early leaves the branch where it was, unless it is to `keep`."""

        async def rounds(held: Branch) -> Run[Out]:
            if prompt is None:
                self._go_on(held)
            else:
                await held.extend(prompt)
            while True:
                step = await Round(self, held).run()
                if step.done:
                    return self._so_far(held, step.output)

        return await self._transaction(rounds, keep, Finished)

    async def step(self, keep: bool) -> Step[Out]:
        """One round. Whatever ends it early leaves the branch where it was, unless it is to `keep`."""

        async def one(held: Branch) -> Step[Out]:
            self._go_on(held)
            return await Round(self, held).run()

        return await self._transaction(one, keep)

    def held(self, choice: str) -> Held:
        """What the next message is held to, where `choice` is what the turn's `tool_choice` says."""
        done = [call.finished.name for call in self.calls if call.finished.status == "done"]
        last = self.repeats.stuck or self.rounds == self.agent.max_rounds
        return self.steering.next(choice, [*self._done_before, *done], bool(self.calls), last)

    def limit(self, what: str, limit: str, advice: str = "", kind: type[LimitReached] = LimitReached) -> LimitReached:
        """The error for a limit, which says what the turn did."""
        called = Counter(call.request.name for call in self.calls)
        calls = ", ".join(f"{name} {count}x" for name, count in called.items()) or "none"
        rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        told = f"{rounds}, {self.generated} tokens, calls: {calls}"
        return kind(f"{what} ({told}); {advice or f'pass a larger {limit} to the agent'}", limit)

    def _go_on(self, held: Branch) -> None:
        """The branch holds the question, and may hold calls of turns that ended early. Raises InvalidInput."""
        _check_asked(held)
        for message in reversed(held.messages):
            if message.role == "user":
                break
            if message.role == "tool" and message.name is not None and not message.content.startswith(ERROR):
                self._done_before.insert(0, message.name)

    async def _transaction(
        self, work: Callable[[Branch], Awaitable[T]], keep: bool, told: Callable[[T], Event] | None = None
    ) -> T:
        self.keeps = keep
        self._observers.turn_began(self, self._branch.id)
        try:
            result = await self._held(work, keep, told)
        except BaseException as error:
            self._observers.turn_ended(self, error)
            raise
        self._observers.turn_ended(self, None)
        return result

    async def _held(self, work: Callable[[Branch], Awaitable[T]], keep: bool, told: Callable[[T], Event] | None) -> T:
        try:
            async with Hold(self._branch, keep=keep) as held:
                self._start = len(held.messages)
                self._hold = held._history.hold
                try:
                    result = await self._in_time(work(held))
                    if told is not None:
                        await self.desk.tell(told(result))
                    return result
                except BaseException as error:
                    self.failed = self._so_far(held)
                    if isinstance(error, Exception):
                        with suppress(Exception):  # one of the user's that takes no attributes
                            error.run = self.failed  # type: ignore[attr-defined]
                    raise
        except Exception as error:
            if not keep:
                await self.desk.tell(RolledBack(len(self._branch), said(error)))
            raise

    async def _in_time(self, work: Awaitable[T]) -> T:
        seconds = self.agent.max_seconds
        with move_on_after(seconds):
            return await work
        raise self.limit(
            f"the turn took longer than {seconds:g} s", "max_seconds", "pass a larger max_seconds, or ask for less"
        )

    def _so_far(self, held: Branch, output: Any = MISSING) -> Run[Out]:
        return Run(
            text=self.text,
            calls=tuple(call.record for call in self.calls if call.record is not None),
            messages=tuple(held.messages[self._start - (self._hold.messages_gone if self._hold else 0) :]),
            usage=Usage(max(len(held) - self.generated + self.taken_back, 0), self.generated),
            rounds=self.rounds,
            seconds=anyio.current_time() - self._began,
            _output=output,
        )


def _check_asked(held: Branch) -> None:
    """Raises InvalidInput for a branch that ends with its instructions: no template has the model speak there."""
    conversation = held._history.conversation
    if conversation.begun and not conversation.opened and len(held) <= conversation.end:
        role = conversation.entries[-1].message["role"] if conversation.entries else None
        ends = f"ends with a message of the {role}, which asks nothing" if role else "holds no question"
        raise InvalidInput(f"the branch {ends}; pass a prompt, or extend the branch by a user's message first")
    held._check_started("an agent's turn")
