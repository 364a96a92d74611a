"""The loop of a chat, from its first line to its last."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio
from agentkv_runtime.folder.printable import printable
from rich.console import Console
from rich.text import Text

from .._aio.signals import received_signals
from .._aio.tasks import FirstErrorGroup
from .._types.errors import AgentKVError, ContextFull, LimitReached
from .._types.run import CallRecord, CallRequest
from ..agents import events
from . import commands
from .answer import AnswerView
from .session import ChatSession

if TYPE_CHECKING:
    from ..agents.control import Words
    from ..agents.stream import AgentStream
    from .keys import TypedAhead

_SURROGATES = re.compile("[\ud800-\udfff]")
AT_ONCE = "!"  # before a line that enters at once
SHOWN_END = 60  # most characters of what stays of a message
HOW_TO_LEAVE = "Ctrl-D or /quit leaves, /help lists commands"


class InterruptHandler:
    """Signal handler between prompts: Ctrl-C ends the running work only, SIGTERM the whole chat.

    Attributes:
        terminated: whether SIGTERM arrived.
    """

    def __init__(self) -> None:
        self.terminated = False
        self._scope: anyio.CancelScope | None = None

    async def watch(self, everything: anyio.CancelScope) -> None:
        """Handles signals until it is cancelled; SIGTERM cancels `everything`."""
        with received_signals(signal.SIGINT, signal.SIGTERM) as signals:
            async for signum in signals:
                if signum == signal.SIGTERM:
                    self.terminated = True
                    everything.cancel()
                elif self._scope is not None:
                    self._scope.cancel()

    @asynccontextmanager
    async def stoppable(self) -> AsyncIterator[anyio.CancelScope]:
        """Scope of work that Ctrl-C ends."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None


async def chat(talk: ChatSession, console: Console) -> None:
    """Prompts for lines until the user leaves. Raises SystemExit after SIGTERM."""
    from .keys import TypedAhead, keep_lines, key_by_key
    from .prompt import prompt_session

    session, stop = prompt_session(talk), InterruptHandler()
    typed = TypedAhead(session.input, session.output)
    with key_by_key(session.input):
        keep_lines(session.input)
        async with anyio.create_task_group() as group:
            group.start_soon(stop.watch, group.cancel_scope)
            while True:
                try:
                    line = (await session.prompt_async("> ", handle_sigint=False)).strip()
                except KeyboardInterrupt:
                    console.print(Text(HOW_TO_LEAVE, "dim"))
                    continue
                except EOFError:
                    break
                try:
                    async with typed.reading(group):
                        if line and not await respond(talk, line, console, stop, typed):
                            typed.drop()
                            console.print(Text("(stopped; what is here stays)", "dim"))
                except commands.Leave:
                    break
                except (AgentKVError, OSError) as error:
                    console.print(Text(f"error: {printable(told(error))}", "red"))
            group.cancel_scope.cancel()
    if stop.terminated:
        raise SystemExit(128 + signal.SIGTERM)


async def chat_of_lines(talk: ChatSession, console: Console) -> None:
    """Reads lines from stdin without a terminal. Raises all errors."""
    async with await anyio.open_file(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:
        async for line in lines:
            try:
                if line.strip():
                    await respond(talk, line.strip(), console, InterruptHandler())
            except commands.Leave:
                break


async def respond(
    talk: ChatSession, line: str, console: Console, stop: InterruptHandler, typed: TypedAhead | None = None
) -> bool:
    """Runs a command, or answers a message. Without `typed` there is nobody to approve tool calls, so those that ask
    are denied.

    Returns False if it was stopped.
    """
    line = _SURROGATES.sub("\ufffd", line)  # bytes that are not UTF-8, as terminals pass them on
    async with stop.stoppable() as scope:
        if line.startswith("/"):
            show(await commands.run(talk, line), console)
        else:
            await show_turn(talk.ask(line), console, typed)
    return not scope.cancelled_caught


def show(text: str, console: Console) -> None:
    """Prints the chat's own lines."""
    lines = "\n".join(map(printable, text.split("\n")))
    console.print(Text(lines, "dim"), soft_wrap=not console.is_terminal)


def told(error: Exception) -> str:
    """Error message, with the option of `agentkv chat` that it concerns."""
    match error:
        case ContextFull():
            return f"{error} (/close, --capacity)"
        case LimitReached(limit="max_tokens" | "max_message_tokens"):
            return f"{error} (--max-tokens)"
    return str(error)


class SteeringLines:
    """Lines that are typed while a turn runs, and steer it."""

    def __init__(self) -> None:
        self._sent: list[tuple[str, Words]] = []

    @property
    def waiting(self) -> int:
        """Number of lines that have not entered yet."""
        return sum(not words.entered for _, words in self._sent)

    @contextmanager
    def steering(self, turn: AgentStream[str], typed: TypedAhead | None) -> Iterator[None]:
        """Has lines enter a turn for the length of a block; the next prompt gets those that did not."""
        if typed is None:
            yield
            return

        def takes(line: str) -> bool:
            at_once = line.startswith(AT_ONCE)
            try:
                self._sent.append((line, turn.steer(line.removeprefix(AT_ONCE), at_once)))
            except AgentKVError:  # the turn has just ended, or there is nothing behind the mark
                return False
            return True

        try:
            with typed.lines_to(takes):
                yield
        finally:
            typed.give_back([line for line, words in self._sent if not words.entered])


async def show_turn(stream: AgentStream[str], console: Console, typed: TypedAhead | None) -> None:
    """Shows a turn as it happens; lines that are typed meanwhile steer it. Without `typed` there are none, and calls
    that need approval are denied."""
    begun, lines = set[str](), SteeringLines()
    with _shown_with(typed, lines, console) as answer, lines.steering(stream, typed):
        async with stream as turn:
            async for event in turn:
                match event:
                    case events.TextDelta(text):
                        answer.add(text)
                    case events.ReasoningDelta(text):
                        answer.think(text)
                    case events.ApprovalAsked() as asked:
                        await _decide(asked, answer, typed)
                    case events.CallStarted(call):
                        begun.add(call.id)
                        answer.note(f"-> {_spelled(call)}")
                    case events.CallFinished(call):
                        if call.id not in begun:  # a call that did not run has no CallStarted
                            answer.note(f"-> {_spelled(call)}")
                        answer.note(f"<- {call.name}: {call.content}")
                    case events.Retried(what, why):
                        answer.note(f"{what} failed, and is tried again: {why}")
                    case events.RolledBack(_, why):
                        answer.note(f"(taken back: {why})")
                    case events.Steered(text, _, kept):
                        if kept:
                            answer.note(f"(stays: {_end_of(kept)})")
                        answer.note(f"> {text}")
                    case events.Finished(run):
                        for warning in run.warnings:
                            answer.note(warning)


@contextmanager
def _shown_with(typed: TypedAhead | None, lines: SteeringLines, console: Console) -> Iterator[AnswerView]:
    """View of an answer; its status line shows how to stop and to steer it, and the text typed ahead."""
    if typed is None:
        with AnswerView(console) as answer:
            yield answer
        return

    def below() -> str:
        waiting = f"{lines.waiting} to enter; " if lines.waiting else ""
        if typed.shown:
            return f"> {typed.shown}  ({waiting}Ctrl-C stops, and drops this)"
        return f"{waiting}Ctrl-C stops; a line enters behind this message, with {AT_ONCE} before it at once"

    with AnswerView(console, below) as answer:
        typed.changed = answer.draw
        try:
            yield answer
        finally:
            typed.changed = lambda: None


async def _decide(asked: events.ApprovalAsked, answer: AnswerView, typed: TypedAhead | None) -> None:
    if typed is None:
        answer.note(f"{_spelled(asked.call)} asks first, and nobody is there: it does not run")
        asked.deny("nobody was there to approve it")
        return
    question = f"{_spelled(asked.call)} asks first: y runs it, any other key does not"
    async with FirstErrorGroup() as group:
        group.start_soon(_end_when_answered, asked, group.cancel_scope)
        if await typed.says_yes(lambda: answer.note(question)):
            asked.approve()
        group.cancel_scope.cancel()


async def _end_when_answered(asked: events.ApprovalAsked, asking: anyio.CancelScope) -> None:
    """Ends the question to a person once somebody has answered by the journal of the turn."""
    await asked.answer()
    asking.cancel()


def _end_of(text: str) -> str:
    """The end of a text, to find it by on the screen."""
    last = text.rstrip().rpartition("\n")[2]
    return last if len(last) <= SHOWN_END else f"...{last[-SHOWN_END:]}"


def _spelled(call: CallRequest | CallRecord) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
