"""Turns of agents: a question, rounds of messages and calls, an answer. A turn is a transaction on its branch.

In each round the model writes one message, its calls run at the same time, and their results enter in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from agentkv_runtime.formats.shown_calls import shown_call

from .._aio.tasks import FirstErrorGroup, maybe_await
from .._context.branch import Branch
from .._context.handle import handle_of
from .._context.lease import TurnLease
from .._state.observers import TurnInfo
from .._types.errors import AgentKVError, InvalidInput, InvalidRollback, LimitReached, OutputInvalid, RepeatedCall
from .._types.log import log
from .._types.results import Usage
from .._types.run import MISSING, CallRecord, CallRequest, Run, Step
from .._types.show import safe_str
from .call_decision import call_probability
from .control import TurnControl
from .events import Finished, Retried, RolledBack, Steered
from .repeats import Repeats, echoes_note
from .reply import EndOfCalls, MessageReply
from .steering import CallRules, Steering, checked_choice
from .tool_runner import ERROR, ToolCallRunner, ToolEnvironment

if TYPE_CHECKING:
    from agentkv_runtime.formats.parsed import ParsedCall
    from anyio.abc import TaskGroup

    from .._types.checks import Prompt
    from .._types.mark import Mark
    from .agent import Agent
    from .events import Event


Out = TypeVar("Out")


class Round(Generic[Out]):
    """A round in progress, on the branch that its turn leases."""

    def __init__(self, turn: Turn[Out], branch: Branch) -> None:
        self._turn = turn
        self._agent = turn.agent
        self._branch = branch
        self._start = len(branch)
        self._conversation = handle_of(branch).state.conversation
        ended = tuple(call.finished for call in turn.calls)
        self._context = replace(turn.environment.context, calls=ended, _asked_at=self._start)
        self._environment = replace(turn.environment, context=self._context)
        self._calls: list[ToolCallRunner] = []  # of the message
        self._begun: set[ToolCallRunner] = set()
        self._is_over = False  # the final tool was called
        self._probability: float | None = None  # of a call, where `call_threshold` is set
        self._calls_are_open = False  # the message that makes them is whole, and no result has entered

    async def run(self) -> Step[Out]:
        """Runs the round.

        Raises LimitReached, ContextFull, OutputInvalid, ToolFailed, and what verbs and hooks raise.
        """
        most = self._agent.max_rounds
        if self._turn.rounds == most:
            raise self._turn.limit(f"the turn made calls in all of its {most} rounds", "max_rounds")
        self._turn.rounds += 1
        if self._agent.before_round is not None:
            await maybe_await(self._agent.before_round(self._context))
        self._environment = replace(self._environment, rules=await self._steered())
        try:
            return await self._answered()
        except BaseException as error:
            if self._calls_are_open and self._turn.control.keep and not isinstance(error, GeneratorExit):
                with anyio.CancelScope(shield=True), suppress(Exception):
                    await self._enter_results()  # so that a later turn knows what the tools did
            raise

    async def _answered(self) -> Step[Out]:
        attempt = 1
        while True:
            reply = await self._reply(attempt)
            if reply.was_cut and not self._calls:
                await self._let_words_in(reply.message.content)
                continue
            if self._calls:
                await self._enter_results()
                records = tuple(call.finished for call in self._calls)
                self._check_repeats()
                output = self._turn.steering.answer(records)
                return self._step(reply, records, output)
            try:
                self._check_called(reply.message.content)
                output = self._agent.answers.read(
                    reply.message.content, handle_of(self._branch).core.chat.format, bool(self._environment.tools)
                )
            except OutputInvalid as error:
                if attempt > self._agent.output_retries:
                    raise
                await self._ask_again(str(error), attempt)
            else:
                self._warn_of_text(reply.message.content)
                return self._step(reply, (), output)
            attempt += 1

    def _step(self, reply: MessageReply, records: tuple[CallRecord, ...], output: Any) -> Step[Out]:
        message = reply.message
        return Step(message.content, message.reasoning, records, reply.generation, output, self._probability)

    async def _reply(self, attempt: int) -> MessageReply:
        """Generates the model's message, and returns it once all of its calls have ended."""
        async with FirstErrorGroup() as group:
            reply = MessageReply(self._turn, self._branch, self._environment.rules, attempt)
            await reply.read(lambda call, whole: self._written(call, whole, group), self._n_begun)
            if reply.was_cut:
                self._drop_calls(self._n_begun())
            self._calls_are_open = bool(self._calls)
            for call in self._calls:
                self._begin(call, group)
        return reply

    def _written(self, parsed: ParsedCall, whole: bool, group: TaskGroup) -> None:
        """Registers a call that is complete or never will be, and begins it where it may begin early.

        Raises LimitReached where the turn has no calls left. While the message is not `whole`, raises EndOfCalls for a
        call that the message has already made, and for one that ends the turn.
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
        call = ToolCallRunner(self._environment, request, self._turn.repeats.why_not(request))
        self._turn.repeats.write(call)
        self._calls.append(call)
        self._turn.calls.append(call)
        if call.begins_early:
            self._begin(call, group)
        if self._turn.steering.is_final(request, self._environment.rules):
            self._is_over = True
            if not whole:
                raise EndOfCalls(len(self._calls))

    def _one_too_many(self) -> str | None:
        """Reason why a message that no grammar constrained may not make one more call; None if it may."""
        most = self._agent.max_calls_per_message
        if self._is_over:
            return f"the turn ends with {self._turn.steering.final_tool}; nothing is called behind it"
        if len(self._calls) >= most:
            return f"a message may make {most} calls; make this one in another message"
        return None

    def _begin(self, call: ToolCallRunner, group: TaskGroup) -> None:
        if call not in self._begun:
            self._begun.add(call)
            group.start_soon(self._run, call)

    def _n_begun(self) -> int:
        """Number of the message's calls through the last one that has begun."""
        return max((index + 1 for index, call in enumerate(self._calls) if call in self._begun), default=0)

    def _drop_calls(self, kept: int) -> None:
        """Forgets the calls of the message behind its first `kept` ones, which were taken back."""
        for call in self._calls[kept:]:
            self._turn.calls.remove(call)
            self._turn.repeats.drop(call)
        del self._calls[kept:]
        self._is_over = any(self._turn.steering.is_final(c.request, self._environment.rules) for c in self._calls)

    async def _let_words_in(self, kept: str) -> None:
        """Has words enter behind what is left of the message; where the branch takes none, that goes as well."""
        if not await self._turn.enter_words(self._branch, kept) and len(self._branch) > self._start:
            self._turn.taken_back += len(self._branch) - self._start
            await self._branch.rollback(self._start)
        self._start = len(self._branch)

    async def _run(self, call: ToolCallRunner) -> None:
        await self._turn.control.gate()
        await call.run()
        if self._agent.after_call is not None:
            await maybe_await(self._agent.after_call(self._context, call.finished))

    async def _enter_results(self) -> None:
        """Extends the branch by the results, in the order of the calls."""
        records = [call.finished for call in self._calls]
        self._calls_are_open = False
        await self._branch.extend(
            [{"role": "tool", "name": r.name, "tool_call_id": r.id, "content": r.content} for r in records]
        )

    async def _steered(self) -> CallRules:
        """Rules for the round's message, after its `tool_choice` function and `call_threshold`."""
        given = self._turn.steering.tool_choice
        if callable(given):
            given = checked_choice(await maybe_await(given(self._context)), self._environment.tools)
        rules = self._turn.rules_for(given)
        threshold = self._agent.call_threshold
        if threshold is None or rules.choice != "auto" or not self._environment.tools or self._turn.calls:
            return rules
        self._probability = await call_probability(self._branch)
        refused = self._probability is not None and self._probability < threshold
        return replace(rules, choice="none") if refused else rules

    def _check_repeats(self) -> None:
        """Raises RepeatedCall where the model repeats a call more than `max_repeats` times. Adds a warning where calls
        of different messages come round again."""
        name, times = self._turn.repeats.end_message()
        if length := self._turn.repeats.round_trip():
            self._warn(f"the calls of the last {length} messages come round: they were made before, in the same order")
        if times > self._agent.max_repeats:
            raise self._turn.limit(
                f"the turn made the same call of {name} in {times + 1} messages one after another",
                "max_repeats",
                "say in the instructions what is to follow, or give the tool repeatable=True",
                RepeatedCall,
            )

    def _check_called(self, text: str) -> None:
        """Raises OutputInvalid for a message without a call where one is required, and no grammar constrained it."""
        if self._environment.rules.must_call:
            raise OutputInvalid("the message makes no call, but it must", text)

    def _warn_of_text(self, text: str) -> None:
        """Adds a warning where the answer looks like a call."""
        name = shown_call(text) if self._environment.tools else None
        if name is None:
            return
        help_is = "docs: My model does not call my tools"
        if name in self._environment.tools:
            what = f"the answer shows a call of {name} as text, which was not run ({help_is})"
        else:
            what = f"the answer shows a call of {name}, which is no tool of the agent ({help_is})"
        self._warn(what)

    def _warn(self, what: str) -> None:
        self._turn.warnings.append(what)
        log.warning(what, branch=self._branch.id)

    async def _ask_again(self, why: str, attempt: int) -> None:
        await self._environment.tell(Retried("output", why, attempt))
        self._turn.taken_back += len(self._branch) - self._start
        await self._branch.rollback(self._start)
        await self._environment.tell(RolledBack(self._start, why))


_ECHO = "the answer repeats what stands in place of a call's result"

T = TypeVar("T")


class Turn(Generic[Out]):
    """A turn in progress, and the record of its work so far.

    Attributes:
        agent: the agent that takes the turn.
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
        self.control = control
        self.steering = steering
        self.tools = tuple(environment.tools.values())
        self.definitions = agent.answers.definitions(self.tools)
        self.repeats = Repeats()
        self._observers = handle_of(branch).core.observers
        self._info = TurnInfo(branch.id, agent.instructions, list(environment.tools))
        self.environment = replace(environment, observe=partial(self._observers.turn_told, self._info))
        self.calls: list[ToolCallRunner] = []
        self.warnings: list[str] = []
        self.rounds = 0
        self.generated = 0
        self.taken_back = 0
        self.text = ""
        self.failed: Run[Out] = Run("", (), (), Usage(len(branch), 0), 0, 0.0)
        self._branch = branch
        self._began = anyio.current_time()
        self._start = 0  # messages of the branch before the turn
        self._done_before: list[str] = []  # tools called since the question, by turns that ended early
        self._lease: TurnLease | None = None
        self._useful: tuple[Mark, int] | None = None  # after the last calls that ran, with `_stays` at that point
        self._was_asked = False  # for the answer, near the end of the turn
        self._before_message: Mark | None = None  # under way

    async def run(self, prompt: Prompt | None, keep: bool) -> Run[Out]:
        """Runs the whole turn. A turn that ends early rolls the branch back, unless `keep`."""

        async def rounds(branch: Branch) -> Run[Out]:
            if prompt is None:
                self._go_on(branch)
            else:
                await branch.extend(prompt)
            while True:
                await self.control.gate()
                await self.enter_words(branch)
                step = await self._round(branch)
                if step.done and not await self._goes_on(branch):
                    self.control.check_stopped()  # a cancellation may come too late for the last wait
                    self._take_up_no_more()
                    return self._so_far(branch, step.output)

        return await self._transaction(rounds, keep, Finished)

    async def step(self, keep: bool) -> Step[Out]:
        """Runs one round. A round that ends early rolls the branch back, unless `keep`."""

        async def one(branch: Branch) -> Step[Out]:
            self._go_on(branch)
            return await self._round(branch)

        return await self._transaction(one, keep)

    async def enter_words(self, branch: Branch, kept: str = "") -> bool:
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
            self.control.settle(words)
            self.repeats, self._was_asked, self._useful = Repeats(), False, None  # this is another question
            self._before_message = branch.mark()
            entered = True
            for each in words:
                await self.environment.tell(Steered(each.text, each.at_once, kept))
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
        log.warning(what, branch=self._branch.id)

    def rules_for(self, choice: str) -> CallRules:
        """Rules for the next message, given the turn's `choice` ("auto", "required", "none" or the name of a tool)."""
        rules = self._asked_for(choice)
        return replace(rules, choice="none") if rules.choice == "auto" and self._was_asked else rules

    def _asked_for(self, choice: str) -> CallRules:
        done = [call.finished.name for call in self.calls if call.finished.status == "done"]
        last = self.repeats.stuck or self.rounds == self.agent.max_rounds
        return self.steering.next(choice, [*self._done_before, *done], bool(self.calls), last)

    async def _round(self, branch: Branch) -> Step[Out]:
        """Runs one round. Where one more with calls would end the turn, asks the model for its answer first."""
        may_answer = not callable(self.steering.tool_choice) and self._asked_for("auto").choice == "auto"
        if self._is_near_end and may_answer and not self._was_asked:
            self._was_asked = True
            await self._ask_for_answer(branch)
        self._before_message = branch.mark()
        step = await Round(self, branch).run()
        if step.done and self._echoes(step.text):
            if may_answer and not self._was_asked:
                return await self._answer_anew(branch, self._before_message)
            self.warnings.append(
                "the answer repeats what stands in place of a result; see docs: My model does not call"
            )
        if not self.repeats.stuck:
            self._useful = branch.mark(), self._stays
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
        await branch.rollback(before)
        await self.environment.tell(RolledBack(before.length, _ECHO))
        self._was_asked = True
        await self._ask_for_answer(branch)
        return await self._round(branch)

    @property
    def _is_near_end(self) -> bool:
        stuck = self.repeats.stuck and self.repeats.times >= self.agent.max_repeats > 0
        return stuck or (bool(self.calls) and self.rounds + 1 == self.agent.max_rounds)

    async def _ask_for_answer(self, branch: Branch) -> None:
        """Rolls back messages that only repeat calls, as a model hardly answers after them, and asks for the answer."""
        if self.repeats.stuck and self._useful is not None:
            mark, stayed = self._useful
            with suppress(InvalidRollback):  # where room was made since, the messages are those that are left
                await branch.rollback(mark)
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
        self, work: Callable[[Branch], Awaitable[T]], keep: bool, to_event: Callable[[T], Event] | None = None
    ) -> T:
        self.control.begin(keep)
        self._observers.turn_began(self._info)
        try:
            result = await self._leased(work, keep, to_event)
        except BaseException as error:
            self._take_up_no_more()  # a turn that did not get its branch, too
            self._observers.turn_ended(self._info, self.rounds, error)
            raise
        self._observers.turn_ended(self._info, self.rounds, None)
        return result

    async def _leased(
        self, work: Callable[[Branch], Awaitable[T]], keep: bool, to_event: Callable[[T], Event] | None
    ) -> T:
        try:
            lease = TurnLease(handle_of(self._branch), keep=keep)
            async with lease as handle:
                branch = Branch(handle)
                self._start, self._lease = len(branch.messages), lease
                try:
                    result = await self._in_time(work(branch))
                    if to_event is not None:
                        await self.environment.tell(to_event(result))
                    return result
                except BaseException as error:
                    self._take_up_no_more()
                    lease.keep = bool(self.control.keep)
                    self.failed = self._so_far(branch)
                    if isinstance(error, Exception):
                        with suppress(Exception):  # one of the user's that takes no attributes
                            error.run = self.failed  # type: ignore[attr-defined]
                    raise
        except Exception as error:
            if not self.control.keep:
                await self.environment.tell(RolledBack(len(self._branch), safe_str(error)))
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
