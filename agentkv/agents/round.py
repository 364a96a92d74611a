"""One round of a turn: a message of the model, its calls, which run at the same time, and their results in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from agentkv_runtime.formats.shown_calls import shown_call

from .._aio.tasks import FirstErrorGroup, maybe_await
from .._context.files import rewind
from .._context.handle import handle_of
from .._types.errors import ApprovalPending, OutputInvalid, RepeatedCall
from .._types.log import log
from .._types.results import Generation, Usage
from .._types.run import CallRequest, Step
from .call_decision import call_probability
from .events import Retried, RolledBack, pending
from .reply import EndOfCalls, MessageReply
from .steering import CallRules, checked_choice
from .tool_runner import ToolCallRunner
from .turn_state import SavedMessage

if TYPE_CHECKING:
    from agentkv_runtime.formats.parsed import ParsedCall

    from .._context.branch import Branch
    from .forking import Place, TurnCopy
    from .turn import Turn

Out = TypeVar("Out")


class Round(Generic[Out]):
    """A round in progress, on the branch that its turn leases."""

    def __init__(self, turn: Turn[Out], branch: Branch, start: int | None = None) -> None:
        """`start`: tokens of the branch before the message, where that is on the branch already."""
        self._turn = turn
        self._agent = turn.agent
        self._branch = branch
        self._start = len(branch) if start is None else start
        self._conversation = handle_of(branch).state.conversation
        ended = tuple(call.finished for call in turn.calls)
        self._context = replace(turn.environment.context, calls=ended, _asked_at=self._start)
        self._environment = replace(turn.environment, context=self._context)
        self._calls: list[ToolCallRunner] = []  # of the message
        self._begun: set[ToolCallRunner] = set()
        self._attempt = 1  # at the message
        self._is_over = False  # the final tool was called
        self._probability: float | None = None  # of a call, where `call_threshold` is set
        self._calls_are_open = False  # the message that makes them is written, and no result has entered
        self._under_way: MessageReply | None = None  # the message, while it is written

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
        return await self._kept(self._answered)

    async def resume(self, message: SavedMessage, text: str) -> Step[Out]:
        """Finishes the round of a message that an earlier process wrote: runs its calls as far as they did not end.

        Raises as `run`.
        """
        self._environment = replace(self._environment, rules=message.rules)
        self._is_over = message.is_over
        self._calls = [self._turn.add_call(self._environment, request) for request in message.calls]
        tokens = handle_of(self._branch).state.tokens[self._start :].tolist()
        usage = Usage(self._start, len(tokens))
        generation = Generation(text, tokens, [], "stop", usage)

        async def finished() -> Step[Out]:
            self._calls_are_open = True
            with self._turn.control.at(lambda: self._copied("calls")):
                async with FirstErrorGroup() as group:
                    for call in self._calls:
                        self._begin(call, group)
                self._check_left()
            return await self._with_results(text, "", generation)

        return await self._kept(finished)

    async def go_on(self, rules: CallRules, attempt: int) -> Step[Out]:
        """Goes on with a message that another turn began, and that its branch holds as far as it was written.

        Raises as `run`.
        """
        self._environment = replace(self._environment, rules=rules)
        self._attempt = attempt
        return await self._kept(self._answered)

    async def _kept(self, work: Callable[[], Awaitable[Step[Out]]]) -> Step[Out]:
        """Runs the round; where that fails and the turn keeps its work, what the message says stays, and the results of
        its calls enter all the same."""
        try:
            return await work()
        except BaseException as error:
            over = not isinstance(error, GeneratorExit | ApprovalPending)
            if over and self._turn.control.keep:
                with anyio.CancelScope(shield=True), suppress(Exception):
                    await self._keep_partial()
            raise

    async def _keep_partial(self) -> None:
        """Leaves a round that failed as one that others go on behind: they know what the tools did."""
        if self._under_way is not None:
            await self._under_way.cut(len(self._calls))
            self._calls_are_open = bool(self._calls)
        if self._calls_are_open:
            await self._enter_results()

    async def _answered(self) -> Step[Out]:
        while True:
            reply = await self._reply()
            if reply.was_cut and not self._calls:
                await self._let_words_in(reply.message.content)
                continue
            if self._calls:
                return await self._with_results(reply.message.content, reply.message.reasoning, reply.generation)
            try:
                self._check_called(reply.message.content)
                output = self._agent.answers.read(
                    reply.message.content, handle_of(self._branch).core.chat.format, bool(self._environment.tools)
                )
            except OutputInvalid as error:
                if self._attempt > self._agent.output_retries:
                    raise
                await self._ask_again(str(error), self._attempt)
            else:
                self._warn_of_text(reply.message.content)
                message = reply.message
                return Step(message.content, message.reasoning, (), reply.generation, output, self._probability)
            self._attempt += 1

    async def _with_results(self, text: str, reasoning: str, generation: Generation) -> Step[Out]:
        """Ends the round of a message whose calls have ended."""
        await self._enter_results()
        records = tuple(call.finished for call in self._calls)
        self._check_repeats()
        output = self._turn.steering.answer(records)
        return Step(text, reasoning, records, generation, output, self._probability)

    async def _reply(self) -> MessageReply:
        """Generates the model's message, and returns it once all of its calls have ended."""
        with ExitStack() as point:
            async with FirstErrorGroup() as group:
                rules = self._environment.rules
                reply = MessageReply(self._turn, self._branch, rules, self._attempt, self._start)
                self._under_way = reply
                await reply.read(
                    lambda call, whole: self._written(call, whole, group),
                    self._n_begun,
                    lambda: self._copied("message"),
                )
                self._under_way = None
                if reply.was_cut:
                    self._drop_calls(self._n_begun())
                self._calls_are_open = bool(self._calls)
                if self._calls:
                    await self._turn.record_message(self._branch, self._start, self._saved())
                    point.enter_context(self._turn.control.at(lambda: self._copied("calls")))
                for call in self._calls:
                    self._begin(call, group)
            self._check_left()
        return reply

    def _copied(self, place: Place) -> TurnCopy:
        return self._turn.copied(place, self._start, self._environment.rules, self._attempt)

    def _written(self, parsed: ParsedCall, whole: bool, group: FirstErrorGroup) -> None:
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
        call = self._turn.add_call(self._environment, request)
        self._calls.append(call)
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

    def _saved(self) -> SavedMessage:
        return SavedMessage(tuple(call.request for call in self._calls), self._environment.rules, self._is_over)

    def _begin(self, call: ToolCallRunner, group: FirstErrorGroup) -> None:
        if call not in self._begun:
            self._begun.add(call)
            group.start_soon(self._run, call, self._one_before(call))

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
            await rewind(handle_of(self._branch), self._start)
        self._start = len(self._branch)

    def _one_before(self, call: ToolCallRunner) -> ToolCallRunner | None:
        """The call that one of a tool in order waits for."""
        earlier = self._calls[: self._calls.index(call)] if call.in_order else []
        return next((each for each in reversed(earlier) if each.in_order), None)

    async def _run(self, call: ToolCallRunner, before: ToolCallRunner | None) -> None:
        await self._turn.control.gate()
        await call.run(before)
        if self._agent.after_call is not None and not call.left:
            await maybe_await(self._agent.after_call(self._context, call.finished))

    def _check_left(self) -> None:
        """Raises ApprovalPending where calls are left to wait for a person, once the others have ended."""
        if keys := dict.fromkeys(key for call in self._calls for key in call.left):
            raise pending(list(keys))

    async def _enter_results(self) -> None:
        """Extends the branch by the results, in the order of the calls."""
        records = [call.finished for call in self._calls]
        await self._branch.extend(
            [{"role": "tool", "name": r.name, "tool_call_id": r.id, "content": r.content} for r in records]
        )
        self._calls_are_open = False  # not before: what is cancelled here enters all the same

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
            last = next((call.record for call in reversed(self._turn.calls) if call.request.name == name), None)
            advice = "say in the instructions what is to follow, or give the tool repeatable=True"
            if last is not None and last.status in ("failed", "timeout"):
                advice = f"the last one failed: {last.error}"
            what = f"the turn made the same call of {name} in {times + 1} messages one after another"
            raise self._turn.limit(what, "max_repeats", advice, RepeatedCall)

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
        await rewind(handle_of(self._branch), self._start)
        await self._environment.tell(RolledBack(self._start, why))
