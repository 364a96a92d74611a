"""One round of a turn: the model writes a message, its calls run at the same time, their results enter in order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from .._errors import LimitReached, OutputInvalid
from .awaiting import awaited
from .calling import Call
from .calls import CallRequest
from .events import Retried, RolledBack
from .reply import Reply
from .step import Step
from .together import Together

if TYPE_CHECKING:
    from agentkv_runtime.formats.parsed import ParsedCall
    from anyio.abc import TaskGroup

    from .._branch import Branch
    from .turn import Turn

Out = TypeVar("Out")


class Round(Generic[Out]):
    """A round under way, on the branch that its turn holds."""

    def __init__(self, turn: Turn[Out], held: Branch) -> None:
        self._turn = turn
        self._agent = turn.agent
        self._held = held
        self._start = len(held)
        self._conversation = held._history.conversation
        self._context = replace(turn.desk.context, _asked_at=self._start)
        self._desk = replace(turn.desk, context=self._context)
        self._calls: list[Call] = []  # of the message
        self._begun: set[Call] = set()
        self._calls_are_open = False  # the message that makes them is whole, and no result has entered

    async def run(self) -> Step[Out]:
        """The round.

        Raises LimitReached, ContextFull, OutputInvalid, ToolFailed, and what verbs and hooks raise.
        """
        most = self._agent.max_rounds
        if self._turn.rounds == most:
            raise LimitReached(
                f"the turn made calls in all of its {most} rounds; pass a larger max_rounds to the agent", "max_rounds"
            )
        self._turn.rounds += 1
        if self._agent.before_round is not None:
            await awaited(self._agent.before_round(self._context))
        try:
            return await self._answered()
        except BaseException as error:
            if self._calls_are_open and self._turn.keeps and not isinstance(error, GeneratorExit):
                with anyio.CancelScope(shield=True), suppress(Exception):
                    await self._enter_results()  # what a tool has done is known to whoever goes on
            raise

    async def _answered(self) -> Step[Out]:
        attempt = 1
        while True:
            reply = await self._reply(attempt)
            if self._calls:
                await self._enter_results()
                records = tuple(call.finished for call in self._calls)
                return Step(reply.message.content, reply.message.reasoning, records, reply.generation)
            try:
                output = self._agent.answers.read(
                    reply.message.content, self._held._home.format, bool(self._desk.tools)
                )
            except OutputInvalid as error:
                if attempt > self._agent.output_retries:
                    raise
                await self._ask_again(str(error), attempt)
            else:
                return Step(reply.message.content, reply.message.reasoning, (), reply.generation, output)
            attempt += 1

    async def _reply(self, attempt: int) -> Reply:
        """The model's message, once all of its calls have ended."""
        async with Together() as group:
            reply = Reply(self._turn, self._held, attempt)
            await reply.read(lambda call: self._written(call, group))
            self._calls_are_open = bool(self._calls)
            for call in self._calls:
                self._begin(call, group)
        return reply

    def _written(self, parsed: ParsedCall, group: TaskGroup) -> None:
        """A call is complete, or never will be. Those that may begin early begin here."""
        most = self._agent.max_calls
        if most is not None and len(self._turn.calls) == most:
            raise LimitReached(
                f"the turn makes more than {most} calls; pass a larger max_calls to the agent", "max_calls"
            )
        name = self._conversation.call_id(len(self._calls))  # as `Branch.messages` calls it
        call = Call(self._desk, CallRequest(name, parsed.name, parsed.arguments or {}, parsed.error, parsed.rescued))
        self._calls.append(call)
        self._turn.calls.append(call)
        if call.begins_early:
            self._begin(call, group)

    def _begin(self, call: Call, group: TaskGroup) -> None:
        if call not in self._begun:
            self._begun.add(call)
            group.start_soon(self._run, call)

    async def _run(self, call: Call) -> None:
        await call.run()
        if self._agent.after_call is not None:
            await awaited(self._agent.after_call(self._context, call.finished))

    async def _enter_results(self) -> None:
        """In the order of the calls, whatever order they ended in."""
        records = [call.finished for call in self._calls]
        self._calls_are_open = False
        await self._held.extend(
            [{"role": "tool", "name": r.name, "tool_call_id": r.id, "content": r.content} for r in records]
        )

    async def _ask_again(self, why: str, attempt: int) -> None:
        await self._desk.tell(Retried("output", why, attempt))
        self._turn.taken_back += len(self._held) - self._start
        await self._held.rollback(self._start)
        await self._desk.tell(RolledBack(self._start, why))
