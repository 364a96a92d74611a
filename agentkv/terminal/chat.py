"""A chat from its first line to its last."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from agentkv_runtime.printable import printable
from rich.console import Console
from rich.text import Text

from .._errors import AgentKVError
from ..agents import events
from . import commands
from .answer import Answer
from .talk import Talk

HOW_TO_LEAVE = "Ctrl-D or /quit leaves, /help lists commands"


class Stop:
    """Ctrl-C between prompts: ends what is under way, and nothing else."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None

    def pressed(self) -> None:
        """Somebody wants it to end."""
        if self._scope is not None:
            self._scope.cancel()

    @asynccontextmanager
    async def stoppable(self) -> AsyncIterator[anyio.CancelScope]:
        """What is in the block ends when it is pressed."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None


async def chat(talk: Talk, console: Console) -> None:
    """Asks a person, until they leave."""
    from .prompt import prompt_session

    session, stop = prompt_session(talk), Stop()
    async with anyio.create_task_group() as group:
        group.start_soon(_watch, stop)
        while True:
            try:
                line = (await session.prompt_async("> ", handle_sigint=False)).strip()
            except KeyboardInterrupt:
                console.print(Text(HOW_TO_LEAVE, "dim"))
                continue
            except EOFError:
                break
            try:
                if line and not await respond(talk, line, console, stop):
                    console.print(Text("(stopped; what is here stays)", "dim"))
            except commands.Leave:
                break
            except (AgentKVError, OSError) as error:
                console.print(Text(f"error: {printable(error)}", "red"), soft_wrap=True)
        group.cancel_scope.cancel()


async def chat_of_lines(talk: Talk, console: Console) -> None:
    """Reads a line at a time from what is no terminal. Raises what goes wrong."""
    async with await anyio.open_file(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:
        async for line in lines:
            try:
                if line.strip():
                    await respond(talk, line.strip(), console, Stop())
            except commands.Leave:
                break


async def respond(talk: Talk, line: str, console: Console, stop: Stop) -> bool:
    """Does a command, or has a message answered. False where it was stopped."""
    async with stop.stoppable() as scope:
        if line.startswith("/"):
            shown = await commands.run(talk, line)
            console.print(Text("\n".join(map(printable, shown.split("\n"))), "dim"), soft_wrap=True)
        else:
            await _answer(talk, line, console)
    return not scope.cancelled_caught


async def _answer(talk: Talk, message: str, console: Console) -> None:
    with Answer(console) as answer:
        async with talk.ask(message) as turn:
            async for event in turn:
                match event:
                    case events.TextDelta(text):
                        answer.add(text)
                    case events.ReasoningDelta(text):
                        answer.think(text)
                    case events.CallStarted(call):
                        given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
                        answer.note(f"-> {call.name}({given})")
                    case events.CallFinished(call):
                        answer.note(f"<- {call.content}")
                    case events.Retried(what, why):
                        answer.note(f"{what} failed, and is tried again: {why}")


async def _watch(stop: Stop) -> None:
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            stop.pressed()
