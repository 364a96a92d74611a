"""Goes on with a turn of a journal in the terminal: `agentkv runs resume`."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from .._aio.tasks import FirstErrorGroup
from .._chat.call_habits import Rescue
from .._console.console import stdout
from .._context.context import Context
from .._model.generate_options import Thinking
from .._types.errors import InvalidInput, JournalError
from .._types.sampling import Sampling
from ..agents.agent import Agent
from ..agents.tool import Tool
from ..journal.journal import Journal
from ..journal.runs import RunInfo
from ..journal.unfinished import UnfinishedRun
from .chat import InterruptHandler, show_turn
from .tools import tools_of

if TYPE_CHECKING:
    from .keys import TypedAhead


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOptions:
    """Options of `agentkv runs resume`, described in its help."""

    journal: Path
    run: RunInfo
    model: Path
    tools: Path | None
    temperature: float
    seed: int | None
    max_tokens: int
    thinking: Thinking
    capacity: int
    quant: str | None
    threads: int | None
    call_format: str | None
    rescue: Rescue


async def resuming(how: ResumeOptions) -> None:
    """Opens the model and goes on with the turn. Ctrl-C and SIGTERM stop it, and raise SystemExit.

    Raises as `Context.open` and `UnfinishedRun.stream` do, and InvalidInput for tools that are missing, and for a
    terminal whose keys cannot be read.
    """
    if _at_terminal():
        from .keys import check_keys

        check_keys()
    agent: Agent[None, str] = Agent(
        how.run.start.instructions,
        tools=_tools(how),
        sampling=Sampling(temperature=how.temperature, seed=how.seed),
        max_tokens=how.max_tokens,
        max_message_tokens=how.max_tokens,
        thinking=how.thinking,
    )
    journal, stop, is_over = Journal(how.journal), InterruptHandler(), False
    async with Context.open(
        how.model,
        how.capacity,
        quant=how.quant,
        threads=how.threads,
        call_format=how.call_format,
        rescue=how.rescue,
        journal=journal,
    ) as context:
        left = await _left(journal, context, how)
        async with FirstErrorGroup() as group:
            group.start_soon(stop.watch, group.cancel_scope)
            async with _keyboard(group) as typed, stop.stoppable():
                await show_turn(left.stream(agent), stdout, typed)
                is_over = True
            group.cancel_scope.cancel()
    if not is_over:
        kept = "its branch keeps what was done" if how.run.start.keep else "the same command goes on with it"
        stdout.print(Text(f"(stopped; {kept})", "dim"), soft_wrap=True)
        raise SystemExit(128 + (signal.SIGTERM if stop.terminated else signal.SIGINT))


def _tools(how: ResumeOptions) -> Sequence[Tool[None, ..., Any]]:
    """The tools of the turn's agent, in its order."""
    there = {} if how.tools is None else {tool.name: tool for tool in tools_of(how.tools)}
    if missing := [name for name in how.run.start.tools if name not in there]:
        raise InvalidInput(
            f"the run has the tools {', '.join(missing)}, which are not here; give the file with them: --tools FILE.py"
        )
    return [there[name] for name in how.run.start.tools]


async def _left(journal: Journal, context: Context, how: ResumeOptions) -> UnfinishedRun:
    async for left in journal.unfinished(context, cancelled=True):
        if left.id == how.run.id:
            return left
    raise JournalError(
        f"run {how.run.id} cannot go on: it was recorded with another tokenizer than that of {how.model}, or it was "
        "cancelled, and its branch has gone on since"
    )


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and stdout.is_terminal


@asynccontextmanager
async def _keyboard(group: FirstErrorGroup) -> AsyncIterator[TypedAhead | None]:
    """Keys of the person who may approve calls; None without a terminal."""
    if not _at_terminal():
        yield None
        return
    from prompt_toolkit.input import create_input
    from prompt_toolkit.output import create_output

    from .keys import TypedAhead, key_by_key

    keys = create_input()
    typed = TypedAhead(keys, create_output())
    with key_by_key(keys):
        async with typed.reading(group):
            yield typed
