"""Runs one tool call: from the model's request to the text of the result that the model reads."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from .._aio.tasks import FirstErrorGroup
from .._types.errors import AgentKVError, ApprovalPending, ToolFailed
from .._types.log import log
from .._types.run import CallRecord, CallRequest, CallStatus
from .._types.show import safe_str, spellable
from .events import ApprovalAsked, CallFinished, CallStarted, Event, Retried
from .parameters import InvalidArguments
from .run_context import RunContext
from .steering import CallRules
from .tool import Retry, Tool
from .turn_log import Decision, EarlierCall, NoTurnLog, TurnLog

if TYPE_CHECKING:
    from .._aio.threads import ToolThreads
    from .._chat.tokenizer import Tokenizer
    from .tool import OnLong


ERROR = '{"error": '
"""Beginning of the text of an error."""


class ResultTooLong(Exception):
    """A result of more tokens than its tool allows. The message is in words for the model."""


def text_of_result(result: object) -> str:
    """Text of a result: a str as it is, anything else as JSON. Raises TypeError for what has no JSON form."""
    if isinstance(result, str):
        return spellable(result)
    try:
        plain = to_jsonable_python(result, fallback=_plain)
    except UnicodeError as error:
        what = f"the tool returned a {type(result).__name__} with bytes or a key that are no text"
        raise TypeError(f"{what}; return what they say, or where they are") from error
    except PydanticSerializationError as error:
        raise TypeError(f"the tool returned a {type(result).__name__}, which has no JSON form") from error
    except ValueError as error:
        what = f"the tool returned a {type(result).__name__} that holds itself, or is nested too deeply"
        raise TypeError(f"{what}; return what has a JSON form") from error
    return spellable(json.dumps(plain, ensure_ascii=False))


def text_of_error(why: str) -> str:
    """Text that the model reads in place of a result: a JSON object with an `error`."""
    return spellable(json.dumps({"error": why}, ensure_ascii=False))


def bounded(text: str, most: int, on_long: OnLong, tokenizer: Tokenizer) -> str:
    """Cuts a text to at most `most` tokens, the mark of the cut included. Raises TooLong if `on_long` is "refuse"."""
    tokens = tokenizer.encode(text, parse_special=False)
    if len(tokens) <= most:
        return text
    if on_long == "refuse":
        raise ResultTooLong(f"the result has {len(tokens)} tokens, and {most} are allowed; ask for less")
    mark = f" ... [cut: {len(tokens)} tokens, {most} allowed]"
    if len(tokenizer.encode(mark, parse_special=False)) >= most:
        mark = ""
    kept = most
    while kept > 0:  # a text that was cut may have other tokens than it had before
        cut = tokenizer.decode(tokens[:kept], skip_special=False).rstrip("\ufffd") + mark
        over = len(tokenizer.encode(cut, parse_special=False)) - most
        if over <= 0:
            return cut
        kept -= over
    return ""


def _plain(value: object) -> object:
    """Converts arrays and their scalars, ranges and views of dicts for pydantic's JSON."""
    if callable(as_list := getattr(value, "tolist", None)):
        return as_list()
    if isinstance(value, Collection):
        return list(value)
    raise PydanticSerializationError("it has no JSON form")


Emit = Callable[[Event], Awaitable[None]]
Ask = Callable[[ApprovalAsked], Awaitable[str | None]]  # None, or why the call is denied

TakeBack = Callable[[Event], bool]  # an emitted event; whether the reader had not received it, and never will

_NOT_KNOWN = (
    "the process ended while this call ran; whether it was carried out is not known: find that out before you make it "
    "again"
)
_LONG = 8192  # characters of a result above which it is tokenized in a thread


async def ignore_event(event: Event) -> None:
    """Drops the event: the listener of turns that nobody listens to."""


def _never_taken_back(event: Event) -> bool:
    return False


def _unobserved(event: Event) -> None:
    pass


def _unheard() -> bool:
    return False


class Heard(TypedDict, total=False):
    """Fields of a ToolEnvironment that depend on who hears the turn's events, and on what it goes on with."""

    take_back: TakeBack
    is_heard: Callable[[], bool]
    taken_over: dict[int, EarlierCall]


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """Services that the calls of one turn share.

    Attributes:
        tools: by name.
        context: run context for tools that take one.
        threads: worker threads for plain functions.
        tokenizer: counts the tokens of results.
        emit: sends an event to the turn's listener.
        ask: has a person decide on a call.
        take_back: takes back an emitted event; returns False where the listener has received it.
        observe: sends an event to the observers of the Context.
        rules: rules for the message that makes the calls.
        is_heard: returns whether anybody hears the events of a turn that waits for no listener.
        log: durable record of the turn.
        taken_over: what is known of calls of the turn that this one is a fork of, by index; each is asked for once.
    """

    tools: Mapping[str, Tool[Any, ..., Any]]
    context: RunContext[Any]
    threads: ToolThreads
    tokenizer: Tokenizer
    emit: Emit
    ask: Ask
    take_back: TakeBack = _never_taken_back
    observe: Callable[[Event], None] = field(default=_unobserved, kw_only=True)
    rules: CallRules = field(default=CallRules(), kw_only=True)
    is_heard: Callable[[], bool] = field(default=_unheard, kw_only=True)
    log: TurnLog = field(default_factory=NoTurnLog, kw_only=True)
    taken_over: dict[int, EarlierCall] = field(default_factory=dict, kw_only=True)

    @property
    def has_listener(self) -> bool:
        """Whether the turn has an event listener that it waits for."""
        return self.emit is not ignore_event and self.is_heard is _unheard

    async def tell(self, event: Event) -> None:
        """Sends an event to the observers and to the listener."""
        self.observe(event)
        await self.emit(event)


class EarlierFailure(Exception):
    """An attempt at a call failed in an earlier process. The message is what was said of it."""


class _CallEnded(Exception):
    """Ends a call without a result. The message gives the reason in words for the model."""

    def __init__(self, status: CallStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class ToolCallRunner:
    """One call of a turn, number `index` from 0.

    Attributes:
        request: the call.
        record: its outcome, set when `run` ends, however that ends, unless the call is left.
        left: keys of the approvals that it is left to wait for, in a later process.
    """

    def __init__(
        self, environment: ToolEnvironment, request: CallRequest, repeats: str | None = None, index: int = 0
    ) -> None:
        """`repeats`: text for the model in place of the result of a repeated call, which then does not run."""
        self._environment = environment
        self._index = index
        self._repeats = repeats
        self._tool = environment.tools.get(request.name)
        self._began = anyio.current_time()
        self._attempts = 0
        self._called = 0  # attempts that called the function
        self._is_known = False  # its outcome is from an earlier process, or another turn
        self._has_begun = False
        self._is_over = anyio.Event()
        self.request = request
        self.record: CallRecord | None = None
        self.left: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Identifier of the call that no other call of any turn has."""
        return f"{self._environment.log.run_id}-{self._index}"

    @property
    def begins_early(self) -> bool:
        """Whether the call may begin while the model still writes its message."""
        return self.request.error is None and self._tool is not None and self._tool.begins_early

    @property
    def in_order(self) -> bool:
        """Whether the call waits for those before it that are in order as well."""
        return self._tool is not None and self._tool.in_order

    @property
    def repeatable(self) -> bool:
        """Whether the call may give another result when it is repeated."""
        return self._tool is not None and self._tool.repeatable

    @property
    def finished(self) -> CallRecord:
        """Record of a call that has ended; "cancelled" where the function ended its own task."""
        return self.record or self._ended("cancelled", "it was cancelled")

    @property
    def is_shared(self) -> bool:
        """Whether forks of the turn read the outcome of this call, which runs."""
        return self._has_begun and (self._tool is None or self._tool.on_fork == "share")

    async def outcome(self) -> CallRecord | None:
        """Waits for the outcome; None for a call that was cancelled."""
        await self._is_over.wait()
        return None if self.record is None or self.record.status == "cancelled" else self.record

    async def run(self, before: ToolCallRunner | None = None) -> None:
        """Runs the call to its end, once the one `before` it has ended; leaves it where that one is left.

        Raises ToolFailed for an exception of a tool with on_error="raise".
        """
        try:
            if before is not None:
                await before._is_over.wait()
                self.left = before.left
            if not self.left:
                self._has_begun = True
                await self._run()
        finally:
            self._is_over.set()

    async def _run(self) -> None:
        failure: BaseException | None = None
        try:
            tool, arguments = self._checked()
            self.record = await self._made(tool, arguments)
        except _CallEnded as end:
            failure = end.__cause__
            self.record = self._ended(end.status, str(end))
            if end.status in ("failed", "timeout"):
                # a sub-agent's limit, say: its message tells all, a traceback would be of this package's own files
                told = {"error": self.record.error} if isinstance(failure, AgentKVError) else {"exc_info": failure}
                log.warning("tool failed", tool=self.request.name, attempts=self._attempts, **told)
        except BaseException as error:
            if isinstance(error, ApprovalPending) and error.is_of(self.key):
                self.left = error.keys
                return
            self.record = self._ended("cancelled", "its turn ended before it did")
            raise
        if not self._is_known:
            await self._environment.log.ended(self._index, self.request, self.record)
        await self._environment.tell(CallFinished(self.record))
        if self.record.status in ("failed", "timeout") and self._tool is not None and self._tool.on_error == "raise":
            raise ToolFailed(f"tool {self.request.name} failed: {self.record.error}") from failure

    def _checked(self) -> tuple[Tool[Any, ..., Any], dict[str, Any]]:
        request, rules = self.request, self._environment.rules
        if self._repeats is not None:
            raise _CallEnded("repeated", self._repeats)
        if request.error is not None:
            raise _CallEnded("invalid", request.error)
        if self._tool is None:
            raise _CallEnded(
                "invalid", f"unknown tool {request.name}; the tools are {', '.join(self._environment.tools)}"
            )
        if not rules.allows(request.name):
            may = ", ".join(filter(rules.allows, self._environment.tools)) or "none"
            raise _CallEnded("invalid", f"{request.name} may not be called now; of the tools {may} may")
        try:
            return self._tool, self._tool.checked(request.arguments)
        except InvalidArguments as error:
            raise _CallEnded("invalid", f"bad arguments: {error}") from error
        except Exception as error:  # a validator of the user's
            raise _CallEnded("invalid", f"bad arguments: {described(error)}") from error

    async def _made(self, tool: Tool[Any, ..., Any], arguments: dict[str, Any]) -> CallRecord:
        """Makes the call, or returns the outcome that it had in an earlier process."""
        known = self._environment.taken_over.pop(self._index, None)
        earlier = known or self._environment.log.earlier(self._index, self.request)
        record = earlier.record if earlier.outcome is None else await earlier.outcome()
        if record is not None:
            self._is_known = True
            return record
        if earlier.started and not tool.idempotent:
            self._called = 1  # so that the record says that it may have had effects
            raise _CallEnded("unknown", _NOT_KNOWN)
        if not earlier.started:
            await self._approved(tool, earlier)
            await self._environment.log.starts(self._index, self.request)
        result, content = await self._result(tool, arguments)
        return self._record("done", content, result=result)

    async def _approved(self, tool: Tool[Any, ..., Any], earlier: EarlierCall) -> None:
        """Returns once the call may run. Raises _CallEnded where a person denies it."""
        if not tool.approve:
            return
        decision = Decision(earlier.denied) if earlier.decided else await self._decision()
        if decision.denied is not None:
            raise _CallEnded("denied", await self._bounded(f"denied: {decision.denied}", "cut"))

    async def _decision(self) -> Decision:
        """Asks a person. Raises ApprovalPending where the turn is left to wait for one."""
        record = self._environment.log
        if (known := await record.asked(self._index, self.request)) is not None:
            return known
        event = ApprovalAsked(self.request, self.key, _leavable=record.is_durable)
        self._environment.observe(event)
        decision = Decision(await self._first_answer(event))
        counts = await record.decided(self._index, self.request, decision)
        if counts != decision:
            log.warning("an approval was decided elsewhere before this answer", key=self.key, denied=counts.denied)
        return counts

    async def _first_answer(self, event: ApprovalAsked) -> str | None:
        """The answer of the person who is asked, or of somebody who answers by the journal: the first of them."""
        async with FirstErrorGroup() as group:
            group.start_soon(self._hear_elsewhere, event, group.cancel_scope)
            event.settle(await self._environment.ask(event))
            group.cancel_scope.cancel()
        return await event.answer()

    async def _hear_elsewhere(self, event: ApprovalAsked, asking: anyio.CancelScope) -> None:
        """Answers the event by what somebody decides elsewhere, and ends the `asking`."""
        event.settle((await self._environment.log.answered(self._index)).denied)
        asking.cancel()

    async def _result(self, tool: Tool[Any, ..., Any], arguments: dict[str, Any]) -> tuple[Any, str]:
        await self._environment.tell(CallStarted(self.request))
        while True:
            self._attempts += 1
            try:
                result = await self._attempt(tool, arguments)
            except Retry as retry:
                why = await self._bounded(safe_str(retry) or "try again", "cut")
                await self._environment.tell(Retried(tool.name, why, self._attempts))
                raise _CallEnded("retry", why) from retry
            except Exception as error:
                if isinstance(error, ApprovalPending) and error.is_of(self.key):
                    raise  # of a sub-agent, whose turn is resumed with this call
                why = await self._bounded(described(error), "cut")
                if self._attempts > tool.retries:
                    raise _CallEnded("timeout" if isinstance(error, _TimedOut) else "failed", why) from error
                await self._environment.tell(Retried(tool.name, why, self._attempts))
            else:
                return result, await self._content(tool, result)
            await anyio.sleep(tool.backoff * 2 ** (self._attempts - 1))

    async def _attempt(self, tool: Tool[Any, ..., Any], arguments: dict[str, Any]) -> Any:
        context = replace(
            self._environment.context,
            call=self.request,
            attempt=self._attempts,
            call_key=self.key,
            _log=self._environment.log,
        )
        if tool.takes_context and context.branch.workspace is not None:
            await context.branch.workspace.ready()  # off the event loop, where the files are many
        call = partial(tool.function, *([context] if tool.takes_context else []), **arguments)
        called = self._called
        task = anyio.get_current_task().id
        with anyio.move_on_after(tool.timeout) as scope:
            try:
                if not _is_async(tool.function):
                    return await self._in_thread(call)
                self._called += 1
                return await call()
            except anyio.get_cancelled_exc_class() as error:
                if anyio.current_effective_deadline() == -math.inf:
                    raise
                raise RuntimeError("it cancelled itself, or waited for what was cancelled") from error
            except GeneratorExit as error:
                if not _runs(task):  # the coroutine is torn down
                    raise
                raise RuntimeError("it raised GeneratorExit") from error
        assert scope.cancelled_caught
        waited = ", and no thread was free for it" if self._called == called else ""
        raise _TimedOut(f"it took longer than {tool.timeout:g} s{waited}")

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        slot = await self._environment.threads.acquire()
        self._called += 1
        try:
            (result,) = await slot.run(partial(_in_tuple, call))  # trio takes no coroutine from a thread
        finally:
            self._called -= slot.skipped
        return await result if inspect.isawaitable(result) else result

    async def _content(self, tool: Tool[Any, ..., Any], result: object) -> str:
        try:
            return await self._bounded(text_of_result(result), tool.on_long)
        except ResultTooLong as error:
            raise _CallEnded("failed", str(error)) from error
        except Exception as error:  # it has no JSON form, and would have none if the function were called again
            raise _CallEnded("failed", described(error)) from error

    async def _bounded(self, text: str, on_long: OnLong) -> str:
        most = None if self._tool is None else self._tool.max_result_tokens
        if most is None:
            return text
        cut = partial(bounded, text, most, on_long, self._environment.tokenizer)
        return cut() if len(text) <= _LONG else await to_thread.run_sync(cut, abandon_on_cancel=True)

    def _ended(self, status: CallStatus, why: str) -> CallRecord:
        content = why if status == "repeated" else text_of_error(why)  # which may quote a result
        return self._record(status, content, error=why)

    def _record(self, status: CallStatus, content: str, result: Any = None, error: str | None = None) -> CallRecord:
        return CallRecord(
            id=self.request.id,
            name=self.request.name,
            arguments=self.request.arguments,
            result=result,
            error=error,
            seconds=anyio.current_time() - self._began,
            status=status,
            content=content,
            attempts=self._called,
            rescued=self.request.rescued,
        )


class _TimedOut(TimeoutError):
    """An attempt took longer than its tool allows."""


def _in_tuple(call: Callable[[], Any]) -> tuple[Any]:
    try:
        return (call(),)
    except GeneratorExit as error:  # asyncio takes that for the end of a coroutine
        raise RuntimeError("it raised GeneratorExit") from error


def _runs(task: int) -> bool:
    """Returns whether this is the current task."""
    try:
        return anyio.get_current_task().id == task
    except RuntimeError:  # there is none
        return False


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def described(error: BaseException) -> str:
    """An exception as the model reads it."""
    name, text = type(error).__name__, safe_str(error)
    if isinstance(error, _TimedOut | EarlierFailure):
        return text
    return f"{name}: {text}" if text else name
