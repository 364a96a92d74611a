"""Turns of agents: a question, rounds of messages and calls, an answer. A turn is a transaction on its branch.

In each round the model writes one message, its calls run at the same time, and their results enter in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from .._aio.scope import drop_frames
from .._context.branch import Branch
from .._context.files import rewind
from .._context.handle import handle_of
from .._context.lease import EarlierWork, TurnLease
from .._state.observers import TurnInfo
from .._types.errors import AgentKVError, ApprovalPending, InvalidInput, InvalidRollback, LimitReached
from .._types.log import log
from .._types.results import Usage
from .._types.run import MISSING, CallRecord, CallRequest, Run, Step
from .._types.show import safe_str
from .control import TurnControl
from .events import Finished, RolledBack, Steered
from .forking import Place, TurnCopy
from .repeats import Repeats, echoes_note
from .round import Round
from .steering import ANY_CALLS, CallRules, Steering
from .tool_runner import ERROR, ToolCallRunner, ToolEnvironment
from .turn_state import RecordedTurn, SavedMessage, TurnStart, TurnState

if TYPE_CHECKING:
    from .._types.checks import Prompt
    from .._types.mark import Mark
    from .agent import Agent
    from .events import Event
    from .run_context import RunContext


Out = TypeVar("Out")


_COUNTS_AS_DONE = ("done", "unknown")  # nothing forces a call again that may have been carried out
_ECHO = "the answer repeats what stands in place of a call's result"

T = TypeVar("T")


class Turn(Generic[Out]):
    """A turn in progress, and the record of its work so far.

    Attributes:
        agent: the agent that takes the turn.
        branch: the branch that it is taken on.
        steering: rules for its messages.
        tools: tools of the turn.
        definitions: their definitions for the prompt.
        environment: services that its calls share.
        repeats: detects repeated calls.
        calls: calls of the model, in the order written.
        warnings: problems that did not fail the turn.
        rounds: number of messages begun.
        generated: number of tokens generated, including those rolled back.
        taken_back: number of generated tokens that the turn rolled back.
        text: content of the last message, as far as it is written.
        log: its durable record.
        control: words that are to enter, pauses, and the end before its end.
        failed: record of a turn that ended early; an empty one otherwise.
    """

    def __init__(
        self,
        agent: Agent[Any, Out],
        branch: Branch,
        environment: ToolEnvironment,
        steering: Steering,
        control: TurnControl,
    ) -> None:
        self.agent = agent
        self.branch = branch
        self.control = control
        control.check_event_loop = handle_of(branch).loop.check_event_loop
        self.steering = steering
        self.tools = tuple(environment.tools.values())
        self.definitions = agent.answers.definitions(self.tools)
        self.repeats = Repeats()
        self._observers = handle_of(branch).core.observers
        self._info = TurnInfo(branch.id, agent.instructions, list(environment.tools))
        self.environment = replace(environment, observe=partial(self._observers.turn_told, self._info))
        self.log = environment.log
        self.calls: list[ToolCallRunner] = []
        self.warnings: list[str] = []
        self.rounds = 0
        self.generated = 0
        self.taken_back = 0
        self.text = ""
        self.failed: Run[Out] = Run("", (), (), Usage(len(branch), 0), 0, 0.0)
        self._began = anyio.current_time()
        self._start = 0  # messages of the branch before the turn
        self._done_before: list[str] = []  # tools called since the question, by turns that ended early
        self._lease: TurnLease | None = None
        self._useful: tuple[Mark, int] | None = None  # after the last calls that ran, with `_stays` at that point
        self._messages: list[SavedMessage] = []  # that made calls
        self._was_asked = False  # for the answer, near the end of the turn
        self._before_message: Mark | None = None  # under way

    async def run(self, prompt: Prompt | None, keep: bool) -> Run[Out]:
        """Runs the whole turn. A turn that ends early rolls the branch back, unless `keep`."""

        async def rounds(branch: Branch) -> Run[Out]:
            return await self._to_its_end(branch, await self._first_round(branch, prompt))

        return await self._transaction(rounds, self._started(prompt, False, keep), Finished)

    async def step(self, keep: bool) -> Step[Out]:
        """Runs one round. A round that ends early rolls the branch back, unless `keep`."""

        async def one(branch: Branch) -> Step[Out]:
            return await self._first_round(branch, None)

        return await self._transaction(one, self._started(None, True, keep))

    async def resume(self, recorded: RecordedTurn) -> Run[Out]:
        """Goes on with a turn of an earlier process, on a branch that is as its record says."""
        state, start = recorded.state, recorded.start

        async def rounds(branch: Branch) -> Run[Out]:
            if state is None:
                step = await self._first_round(branch, start.prompt)
            else:
                self._restore(branch, state, state.messages[:-1], recorded.records)
                step = await self._resumed_round(branch, state)
            if start.once:
                return self._so_far(branch, step.output if step.done else MISSING)
            return await self._to_its_end(branch, step)

        return await self._transaction(rounds, start, Finished, recorded.earlier_work())

    async def _first_round(self, branch: Branch, prompt: Prompt | None) -> Step[Out]:
        """Runs the first round, after the question."""
        if prompt is None:
            self._go_on(branch)
        else:
            await branch.extend(prompt)
        return await self._next_round(branch)

    async def _next_round(self, branch: Branch) -> Step[Out]:
        """Runs a round behind the words that wait, once the turn is not paused."""
        await self.control.gate(lambda: self.copied("between", len(branch)))
        await self.enter_words(branch)
        return await self._round(branch)

    async def _to_its_end(self, branch: Branch, step: Step[Out]) -> Run[Out]:
        """Runs rounds after this one until the answer, and on where words enter behind that."""
        while not step.done or await self._goes_on(branch):
            step = await self._next_round(branch)
        self.control.check_stopped()  # a cancellation may come too late for the last wait
        self._take_up_no_more()
        return self._so_far(branch, step.output)

    async def enter_words(self, branch: Branch, kept: str | None = None) -> bool:
        """Extends the branch by the words that wait, each as a user's message, behind the `kept` text of a message that
        they cut short. Returns whether any entered: words that the branch does not take are refused."""
        entered = False
        while words := list(self.control.waiting):
            try:
                await branch.extend([{"role": "user", "content": each.text} for each in words])
            except AgentKVError as error:
                self._warn_of_lost(len(words), safe_str(error))
                self.control.settle(words, error)
                continue
            entered = True
            self.repeats, self._was_asked, self._useful = Repeats(), False, None  # this is another question
            self._before_message = handle_of(branch).state.mark()
            self._messages.append(SavedMessage((), ANY_CALLS, False))
            state = self._state(len(branch))
            await self.log.wrote(branch, state if kept is None else replace(state, rounds=state.rounds - 1))
            self.control.settle(words)
            for each in words:
                await self.environment.tell(Steered(each.text, each.at_once, kept or ""))
        return entered

    async def _goes_on(self, branch: Branch) -> bool:
        """Has the words that wait enter behind the answer, where one more message is allowed."""
        return self.rounds < self.agent.max_rounds and await self.enter_words(branch)

    def _take_up_no_more(self) -> None:
        if lost := self.control.end():
            self._warn_of_lost(len(lost), "the turn ended before")

    def _warn_of_lost(self, count: int, why: str) -> None:
        what = f"{count} message{'s' * (count != 1)} of steer did not enter the turn: {why}"
        self.warnings.append(what)
        log.warning(what, branch=self.branch.id)

    def add_call(self, environment: ToolEnvironment, request: CallRequest) -> ToolCallRunner:
        """Registers a call of the present message."""
        call = ToolCallRunner(environment, request, self.repeats.why_not(request), len(self.calls))
        self.repeats.write(call)
        self.calls.append(call)
        return call

    async def record_message(self, branch: Branch, begins: int, message: SavedMessage) -> None:
        """Records the state behind a complete message with calls, before the results of these."""
        self._messages.append(message)
        await self.log.wrote(branch, self._state(begins))

    def _state(self, begins: int) -> TurnState:
        useful = None if self._useful is None else (self._useful[0].length, self._useful[1])
        assert self._lease is not None
        return TurnState(
            base=self._lease.start,
            n_messages=self._start,
            n_messages_dropped=self._lease.n_messages_dropped,
            begins=begins,
            rounds=self.rounds,
            generated=self.generated,
            taken_back=self.taken_back,
            text=self.text,
            was_asked=self._was_asked,
            useful=useful,
            warnings=tuple(self.warnings),
            done_before=tuple(self._done_before),
            messages=tuple(self._messages),
        )

    def copied(self, place: Place, begins: int, rules: CallRules = ANY_CALLS, attempt: int = 1) -> TurnCopy:
        """Copies the turn as it is; `begins`: tokens of the branch before the message under way."""
        start, state = self._started(None, False, bool(self.control.keep)), self._state(begins)
        return TurnCopy(self, start, state, place, len(self.branch), rules, attempt, len(self.calls))

    async def go_on(self, copy: TurnCopy) -> Run[Out]:
        """Goes on with a copy of another turn, on a fork of its branch."""
        state = copy.state

        async def rounds(branch: Branch) -> Run[Out]:
            whole = state.messages[:-1] if copy.place == "calls" else state.messages
            self._restore(branch, state, whole, copy.records)
            if copy.place == "calls":
                return await self._to_its_end(branch, await self._resumed_round(branch, state))
            if copy.place == "between":
                return await self._to_its_end(branch, await self._next_round(branch))
            history = handle_of(branch).state
            self._before_message = history.mark_at(state.begins, history.tip[1])
            step = await Round(self, branch, state.begins).go_on(copy.rules, copy.attempt)
            return await self._to_its_end(branch, await self._judged(branch, step))

        of = copy.turn._lease
        earlier = EarlierWork(state.base, state.n_messages_dropped, files=None if of is None else of.files)
        return await self._transaction(rounds, copy.start, Finished, earlier)

    def _started(self, prompt: Prompt | None, once: bool, keep: bool) -> TurnStart:
        tools = tuple(self.environment.tools)
        return TurnStart(prompt, once, keep, self.agent.instructions, tools, self.steering.saved())

    def _restore(
        self, branch: Branch, state: TurnState, whole: Sequence[SavedMessage], records: Mapping[int, CallRecord]
    ) -> None:
        """Takes over a state with the messages whose calls have ended: the `whole` ones."""
        history = handle_of(branch).state
        self._start = state.n_messages
        self.rounds, self.generated, self.taken_back = state.rounds, state.generated, state.taken_back
        self.text, self._was_asked = state.text, state.was_asked
        self.warnings, self._done_before = [*state.warnings], [*state.done_before]
        self._messages = [*state.messages]
        if state.useful is not None:
            length, stays = state.useful
            self._useful = history.mark_at(length, history.tip[1]), stays
        for message in whole:
            if not message.calls:
                self.repeats = Repeats()
                continue
            for request in message.calls:
                call = self.add_call(self.environment, request)
                call.record = records.get(len(self.calls) - 1, call.finished)
            self.repeats.end_message()
            self.repeats.round_trip()

    async def _resumed_round(self, branch: Branch, state: TurnState) -> Step[Out]:
        """Finishes the round of the last message of a state."""
        history = handle_of(branch).state
        message, self._before_message = state.messages[-1], history.mark_at(state.begins, history.tip[1])
        if not message.calls:
            self.repeats = Repeats()
            return await self._next_round(branch)
        step = await Round(self, branch, state.begins).resume(message, state.text)
        return await self._judged(branch, step)

    @property
    def context(self) -> RunContext[Any]:
        """Run context of its tools."""
        return self.environment.context

    def rules_for(self, choice: str) -> CallRules:
        """Rules for the next message, given the turn's `choice` ("auto", "required", "none" or the name of a tool)."""
        rules = self._asked_for(choice)
        return replace(rules, choice="none") if rules.choice == "auto" and self._was_asked else rules

    def _asked_for(self, choice: str) -> CallRules:
        done = [call.finished.name for call in self.calls if call.finished.status in _COUNTS_AS_DONE]
        last = self.repeats.stuck or self.rounds == self.agent.max_rounds
        return self.steering.next(choice, [*self._done_before, *done], bool(self.calls), last)

    async def _round(self, branch: Branch) -> Step[Out]:
        """Runs one round. Where one more with calls would end the turn, asks the model for its answer first."""
        if self._is_near_end and self._may_answer and not self._was_asked:
            self._was_asked = True
            await self._ask_for_answer(branch)
        self._before_message = handle_of(branch).state.mark()
        return await self._judged(branch, await Round(self, branch).run())

    async def _judged(self, branch: Branch, step: Step[Out]) -> Step[Out]:
        """Takes an answer back that only repeats a note, and asks for another, once."""
        if step.done and self._echoes(step.text):
            if self._may_answer and not self._was_asked:
                assert self._before_message is not None
                return await self._answer_anew(branch, self._before_message)
            self.warnings.append(
                "the answer repeats what stands in place of a result; see docs: My model does not call"
            )
        if not self.repeats.stuck:
            self._useful = handle_of(branch).state.mark(), self._stays
        return step

    def _echoes(self, text: str) -> bool:
        """Returns whether an answer repeats the text in place of a result: a note on a repeated call, or a fault."""
        records = [call.record for call in self.calls if call.record is not None]
        if any(record.status == "repeated" for record in records) and echoes_note(text):
            return True
        faults = (record.content.strip().casefold() for record in records if record.status == "invalid")
        return any(fault and fault in text.casefold() for fault in faults)

    async def _answer_anew(self, branch: Branch, before: Mark) -> Step[Out]:
        """Rolls back an answer that only repeats a note, and asks for another."""
        self.taken_back += len(branch) - before.length
        await rewind(handle_of(branch), before)
        await self.environment.tell(RolledBack(before.length, _ECHO))
        self._was_asked = True
        await self._ask_for_answer(branch)
        return await self._round(branch)

    @property
    def _may_answer(self) -> bool:
        """Whether the next message may be the answer."""
        return not callable(self.steering.tool_choice) and self._asked_for("auto").choice == "auto"

    @property
    def _is_near_end(self) -> bool:
        stuck = self.repeats.stuck and self.repeats.times >= self.agent.max_repeats > 0
        return stuck or (bool(self.calls) and self.rounds + 1 == self.agent.max_rounds)

    async def _ask_for_answer(self, branch: Branch) -> None:
        """Rolls back messages that only repeat calls, as a model hardly answers after them, and asks for the answer."""
        if self.repeats.stuck and self._useful is not None:
            mark, stayed = self._useful
            with suppress(InvalidRollback):  # where room was made since, the messages are those that are left
                await rewind(handle_of(branch), mark)
                self.taken_back += self._stays - stayed
                await self.environment.tell(RolledBack(mark.length, "the same calls were made again"))
        await branch.extend([{"role": "user", "content": self.agent.answers.request}])

    @property
    def _stays(self) -> int:
        """Number of generated tokens that were not rolled back."""
        return self.generated - self.taken_back

    def limit(self, what: str, limit: str, advice: str = "", kind: type[LimitReached] = LimitReached) -> LimitReached:
        """Makes the error for a limit. Its message sums up rounds, tokens and calls of the turn."""
        called = Counter(call.request.name for call in self.calls)
        calls = ", ".join(f"{name} {count}x" for name, count in called.items()) or "none"
        rounds = f"{self.rounds} round{'s' * (self.rounds != 1)}"
        work = f"{rounds}, {self.generated} tokens, calls: {calls}"
        return kind(f"{what} ({work}); {advice or f'pass a larger {limit} to the agent'}", limit)

    def _go_on(self, branch: Branch) -> None:
        """Collects the calls since the question on the branch. Raises InvalidInput where the branch has no question."""
        _check_asked(branch)
        for message in reversed(branch.messages):
            if message.role == "user":
                break
            if message.role == "tool" and message.name is not None and not message.content.startswith(ERROR):
                self._done_before.insert(0, message.name)

    async def _transaction(
        self,
        work: Callable[[Branch], Awaitable[T]],
        start: TurnStart,
        to_event: Callable[[T], Event] | None = None,
        earlier: EarlierWork | None = None,
    ) -> T:
        """Runs the turn as a transaction. `earlier`: work of it that its branch holds already."""
        self.control.begin(start.keep)
        self._observers.turn_began(self._info)
        try:
            result = await self._leased(work, start, to_event, earlier)
        except BaseException as error:
            self._take_up_no_more()  # a turn that did not get its branch, too
            self._observers.turn_ended(self._info, self.rounds, error)
            if not isinstance(error, GeneratorExit):  # a coroutine that is torn down can await nothing
                with anyio.CancelScope(shield=True):
                    await self.log.gave_up(self.branch, error, bool(self.control.keep))
            drop_frames(error)
            raise
        self._observers.turn_ended(self._info, self.rounds, None)
        return result

    async def _leased(
        self,
        work: Callable[[Branch], Awaitable[T]],
        start: TurnStart,
        to_event: Callable[[T], Event] | None,
        earlier: EarlierWork | None,
    ) -> T:
        lease = TurnLease(handle_of(self.branch), keep=start.keep, earlier=earlier)
        try:
            async with lease as handle:
                branch = Branch(handle)
                self._start, self._lease = len(branch.messages), lease
                try:
                    await self.log.began(branch, start)
                    result = await self._in_time(work(branch))
                    await self.log.finished(branch, self._so_far(branch))
                    if to_event is not None:
                        await self.environment.tell(to_event(result))
                    return result
                except BaseException as error:
                    self._take_up_no_more()
                    if isinstance(error, ApprovalPending) and error.is_of(self.log.run_id):
                        self.control.keep = False  # its work is in the journal, and goes on from there
                    lease.keep = bool(self.control.keep)
                    self.failed = self._so_far(branch)
                    if isinstance(error, Exception):
                        with suppress(Exception):  # one of the user's that takes no attributes
                            error.run = self.failed  # type: ignore[attr-defined]
                    raise
        except Exception as error:
            if not self.control.keep:
                await self.environment.tell(RolledBack(len(self.branch), safe_str(error)))
            raise

    async def _in_time(self, work: Awaitable[T]) -> T:
        seconds = self.agent.max_seconds
        with self.control.bounds(seconds):
            return await work
        self.control.check_stopped()
        raise self.limit(
            f"the turn took longer than {seconds:g} s", "max_seconds", "pass a larger max_seconds, or ask for less"
        )

    def _so_far(self, branch: Branch, output: Any = MISSING) -> Run[Out]:
        return Run(
            text=self.text,
            calls=tuple(call.record for call in self.calls if call.record is not None),
            messages=tuple(branch.messages[self._start - (self._lease.n_messages_dropped if self._lease else 0) :]),
            usage=Usage(max(len(branch) - self._stays, 0), self.generated),
            rounds=self.rounds,
            seconds=anyio.current_time() - self._began,
            _output=output,
            warnings=tuple(self.warnings),
        )


def _check_asked(branch: Branch) -> None:
    """Raises InvalidInput for a branch whose last message asks nothing: no template has the model reply there."""
    conversation = handle_of(branch).state.conversation
    if conversation.begun and not conversation.awaits_reply and len(branch) <= conversation.end:
        role = conversation.entries[-1].message["role"] if conversation.entries else None
        ends = f"ends with a message of the {role}, which asks nothing" if role else "holds no question"
        raise InvalidInput(f"the branch {ends}; pass a prompt, or extend the branch by a user's message first")
    handle_of(branch).check_started("an agent's turn")
