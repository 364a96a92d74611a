"""Opens and closes the Context of a chat, and reports forgotten tokens."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from .._chat.call_habits import Rescue
from .._console.console import stderr, stdout
from .._context.context import Context
from .._model.drafters import Speculative
from .._model.generate_options import Thinking
from .._types.errors import InvalidInput
from .._types.sampling import Sampling
from ..agents.agent import Agent
from ..overflow import DropOldest, Room
from .chat import HOW_TO_LEAVE, chat, chat_of_lines, show
from .commands import loaded
from .session import ChatSession
from .tools import CALCULATOR, tools_of


@dataclass(frozen=True, slots=True)
class AnnouncedDropOldest:
    """Overflow policy: drops the oldest tokens as `kv.overflow.DropOldest` does, and prints how many.

    Attributes:
        console: console for the message.
    """

    console: Console

    async def make_room(self, room: Room) -> bool:
        """Drops the oldest tokens and prints their number."""
        before = _held(room)
        made = await DropOldest().make_room(room)
        if gone := before - _held(room):
            self.console.print(Text(f"(too long: its oldest {gone} tokens are forgotten; --capacity)", "dim"))
        return made


def _held(room: Room) -> int:
    return room.length - sum(p1 - p0 for p0, p1 in room.forgotten)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of `agentkv chat`, described in its help."""

    model: Path
    called: str
    system: str
    tools: Path | None
    calculator: bool
    temperature: float
    seed: int | None
    max_tokens: int
    thinking: Thinking
    speculative: Speculative | None
    load: Path | None
    capacity: int
    quant: str | None
    threads: int | None
    call_format: str | None = None
    rescue: Rescue = True
    prefix_cache: Mapping[str, Any] = field(default_factory=dict)


async def talking(how: ChatOptions) -> None:
    """Opens the model and runs the chat. Raises as `Context.open` and `Context.load_all` do, and InvalidInput."""
    own = [] if how.tools is None else tools_of(how.tools)
    on = [*([CALCULATOR] if how.calculator else []), *own]
    sampling = Sampling(temperature=how.temperature, seed=how.seed)
    agent: Agent[None, str] = Agent(
        how.system,
        tools=on,
        sampling=sampling,
        max_tokens=how.max_tokens * Agent.max_rounds,  # of all answers of a turn that lines enter
        max_message_tokens=how.max_tokens,
        thinking=how.thinking,
        speculative=how.speculative,
    )
    room = AnnouncedDropOldest(stdout if stdout.is_terminal else stderr)
    async with Context.open(
        how.model,
        how.capacity,
        quant=how.quant,
        threads=how.threads,
        speculative=how.speculative,  # some hear of a branch from its first token on
        overflow=room,
        call_format=how.call_format,
        rescue=how.rescue,
        **how.prefix_cache,
    ) as context:
        if not context.tokenizer.has_chat_template:
            raise InvalidInput(
                f"{how.called} is a base model: it has no chat template, so nothing tells it when to answer. Have it "
                "go on with texts: agentkv serve, and POST /v1/completions; or await ctx.branch(text) in Python"
            )
        talk = ChatSession(context, agent, [CALCULATOR, *own])
        if how.load is None:
            await talk.begin()
        else:
            show(await loaded(talk, how.load), stdout)
        if sys.stdin.isatty():
            stdout.print(Text(f"{how.called} is here. {HOW_TO_LEAVE}.", "dim"))
            await chat(talk, stdout)
        else:
            await chat_of_lines(talk, stdout)
