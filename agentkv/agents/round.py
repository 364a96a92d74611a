"""One round of a turn: the model writes a message, its calls run at the same time, their results enter in order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from agentkv_runtime.formats.shown_calls import shown_call

from .._errors import OutputInvalid, RepeatedCall
from .._handle import handle_of
from .._log import log
from .awaiting import awaited
from .call_decision import call_probability
from .calling import Call
from .calls import CallRecord, CallRequest
from .events import Retried, RolledBack
from .reply import EndOfCalls, Reply
from .steering import checked_choice
from .step import Step
from .together import Together

if TYPE_CHECKING:
    from agentkv_runtime.formats.parsed import ParsedCall
    from anyio.abc import TaskGroup

    from .._branch import Branch
    from .steering import Held
    from .turn import Turn

Out = TypeVar("Out")


class Round(Generic[Out]):
    """A round under way, on the branch that its turn holds."""

    def __init__(self, turn: Turn[Out], held: Branch) -> None:
        self._turn = turn
        self._agent = turn.agent
        self._held = held
        self._start = len(held)
        self._conversation = handle_of(held).state.conversation
        ended = tuple(call.finished for call in turn.calls)
        self._context = replace(turn.desk.context, calls=ended, _asked_at=self._start)
        self._desk = replace(turn.desk, context=self._context)
        self._calls: list[Call] = []  # of the message
        self._begun: set[Call] = set()
        self._is_over = False  # the final tool was called
        self._probability: float | None = None  # of a call, where that was asked for
        self._calls_are_open = False  # the message that makes them is whole, and no result has entered

    async def run(self) -> Step[Out]:
        """The round.

        Raises LimitReached, ContextFull, OutputInvalid, ToolFailed, and what verbs and hooks raise.
        """
        most = self._agent.max_rounds
        if self._turn.rounds == most:
            raise self._turn.limit(f"the turn made calls in all of its {most} rounds", "max_rounds")
        self._turn.rounds += 1
        if self._agent.before_round is not None:
            await awaited(self._agent.before_round(self._context))
        self._desk = replace(self._desk, held=await self._steered())
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
                self._check_repeats()
                output = self._turn.steering.answer(records)
                return self._step(reply, records, output)
            try:
                self._check_called(reply.message.content)
                output = self._agent.answers.read(
                    reply.message.content, handle_of(self._held).core.chat.format, bool(self._desk.tools)
                )
            except OutputInvalid as error:
                if attempt > self._agent.output_retries:
                    raise
                await self._ask_again(str(error), attempt)
            else:
                self._warn_of_text(reply.message.content)
                return self._step(reply, (), output)
            attempt += 1

    def _step(self, reply: Reply, records: tuple[CallRecord, ...], output: Any) -> Step[Out]:
        message = reply.message
        return Step(message.content, message.reasoning, records, reply.generation, output, self._probability)

    async def _reply(self, attempt: int) -> Reply:
        """The model's message, once all of its calls have ended."""
        async with Together() as group:
            reply = Reply(self._turn, self._held, self._desk.held, attempt)
            await reply.read(lambda call, whole: self._written(call, whole, group))
            self._calls_are_open = bool(self._calls)
            for call in self._calls:
                self._begin(call, group)
        return reply

    def _written(self, parsed: ParsedCall, whole: bool, group: TaskGroup) -> None:
        """A call is complete, or never will be; the message may be `whole` by then. Those that may begin early do.

        Raises LimitReached where it is one too many for the turn; EndOfCalls where the message, which is not whole, has
        made it, or where it ends the turn.
        """
        if not whole and self._turn.repeats.has_now(parsed):
            raise EndOfCalls(len(self._calls))
        most = self._agent.max_calls
        if most is not None and len(self._turn.calls) == most:
            raise self._turn.limit(f"the turn makes more than {most} calls", "max_calls")
        name = self._conversation.call_id(len(self._calls))  # as `Branch.messages` calls it
        request = CallRequest(
            name, parsed.name, parsed.arguments or {}, parsed.error or self._one_too_many(), parsed.rescued
        )
        call = Call(self._desk, request, self._turn.repeats.why_not(request))
        self._turn.repeats.write(call)
        self._calls.append(call)
        self._turn.calls.append(call)
        if call.begins_early:
            self._begin(call, group)
        if self._turn.steering.is_final(request, self._desk.held):
            self._is_over = True
            if not whole:
                raise EndOfCalls(len(self._calls))

    def _one_too_many(self) -> str | None:
        """Why a message that no grammar held may not make one more call."""
        most = self._agent.max_calls_per_message
        if self._is_over:
            return f"the turn ends with {self._turn.steering.final_tool}; nothing is called behind it"
        if len(self._calls) >= most:
            return f"a message may make {most} calls; make this one in another message"
        return None

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

    async def _steered(self) -> Held:
        """What the message is held to."""
        given = self._turn.steering.tool_choice
        if callable(given):
            given = checked_choice(await awaited(given(self._context)), self._desk.tools)
        held = self._turn.held(given)
        threshold = self._agent.call_threshold
        if threshold is None or held.choice != "auto" or not self._desk.tools or self._turn.calls:
            return held
        self._probability = await call_probability(self._held)
        refused = self._probability is not None and self._probability < threshold
        return replace(held, choice="none") if refused else held

    def _check_repeats(self) -> None:
        """Raises RepeatedCall where the model does not heed what it was told of a call that it makes again."""
        name, times = self._turn.repeats.end_message()
        if times > self._agent.max_repeats:
            raise self._turn.limit(
                f"the turn made the same call of {name} in {times + 1} messages one after another",
                "max_repeats",
                "say in the instructions what is to follow, or give the tool repeatable=True",
                RepeatedCall,
            )

    def _check_called(self, text: str) -> None:
        """Raises OutputInvalid for a message without a call where one was asked for, and no grammar held it."""
        if self._desk.held.must_call:
            raise OutputInvalid("the message makes no call, but it must", text)

    def _warn_of_text(self, text: str) -> None:
        """Says where the answer looks like a call."""
        name = shown_call(text) if self._desk.tools else None
        if name is None:
            return
        help_is = "docs: My model does not call my tools"
        if name in self._desk.tools:
            what = f"the answer shows a call of {name} as text, which was not run ({help_is})"
        else:
            what = f"the answer shows a call of {name}, which is no tool of the agent ({help_is})"
        self._turn.warnings.append(what)
        log.warning(what, branch=self._held.id)

    async def _ask_again(self, why: str, attempt: int) -> None:
        await self._desk.tell(Retried("output", why, attempt))
        self._turn.taken_back += len(self._held) - self._start
        await self._held.rollback(self._start)
        await self._desk.tell(RolledBack(self._start, why))
