"""One conversation with tools by each door of the package, under any chat template: nano with its template replaced.

`python -m tests.kinds.doors FOLDER` does it with each template of a folder, and prints the table.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from agentkv_runtime.formats import Format

import agentkv as kv
from agentkv.terminal import commands
from agentkv.terminal.session import Talk
from tests.agentkv.serve.conftest import serving_of

from .protocols import WEATHER, ask, calling

SYSTEM, QUESTION, RESULT, ANSWER, MORE = "Speak as a sailor.", "Weather in Oslo?", "It drizzles.", "Rain.", "And then?"
SPECIALS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


@dataclass
class Seen:
    """What a model read by a door.

    Attributes:
        prompts: as texts, control tokens included; one for each message that it wrote.
        begun: tokens that were prefilled before anything was asked.
        form: how the model writes calls, once it is open.
    """

    prompts: list[str] = field(default_factory=list)
    begun: int = 0
    form: Format | None = None

    def reply(self, prompt: str) -> object:
        """The model calls until it has a result, and answers then. It thinks no longer than it must."""
        self.prompts.append(prompt)
        assert self.form is not None
        said = ANSWER if RESULT in prompt else kv.testing.call("weather", city="Oslo")
        thinks = self.form.thinking and self.form.parser(prefix=self.form.template.begun_in(prompt)).in_reasoning
        return [self.form.thinking[1], said] if self.form.thinking and thinks else said


def with_template(template: str, folder: Path) -> Path:
    """Nano with another chat template."""
    shutil.copytree(kv.models.nano(), folder, copy_function=os.link)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.unlink()
    file.write_text(json.dumps({**config, **SPECIALS, "chat_template": template}))
    return folder


@asynccontextmanager
async def opened(folder: Path, seen: Seen) -> AsyncIterator[kv.Context]:
    """The model, with a script. It calls as its template spells calls."""
    async with kv.testing.replies(seen.reply, folder, capacity=32768, threads=1, kv_dtype="int8") as ctx:
        seen.form = ctx._core.chat.format
        yield ctx


@kv.tool
def weather(city: str) -> str:
    """The weather in a city."""
    return RESULT


def agent_of(instructions: str = SYSTEM) -> kv.Agent[None, str]:
    """An agent with one tool."""
    return kv.Agent(instructions, tools=[weather])


async def by_agent(folder: Path, seen: Seen) -> None:
    """A trunk, two turns on a fork of it, and the first one again."""
    async with opened(folder, seen) as ctx:
        agent = agent_of()
        trunk = await agent.trunk(ctx)
        seen.begun = len(trunk)
        branch = await trunk.fork()
        for question in (QUESTION, MORE):
            assert (await agent.run(branch, question)).output == ANSWER
        told = [(message.role, message.content) for message in branch.messages]
        assert told[0] == ("system", SYSTEM), told
        assert told[1:4:2] == [("user", QUESTION), ("tool", RESULT)], told
        assert told[4:] == [("assistant", ANSWER), ("user", MORE), ("assistant", ANSWER)], told
        assert [(message.role, message.content) for message in trunk.messages] == [("system", SYSTEM)]
        assert (await agent.run(trunk, QUESTION)).output == ANSWER
        assert seen.prompts[-1] == seen.prompts[1]


async def by_chat(folder: Path, seen: Seen) -> None:
    """A chat with a system prompt and one without, a question, and what its commands do with it."""
    async with opened(folder, seen) as ctx:
        for system in (SYSTEM, ""):
            talk = Talk(ctx, agent_of(system), [weather])
            await talk.begin()
            seen.begun = len(talk.branch)
            assert talk.system == system
            for line in (
                "/fork",
                "/rollback",
                "/tools off weather",
                "/tools on weather",
                "/clear",
                f"/system {SYSTEM}",
            ):
                await _say(talk, QUESTION)
                await commands.run(talk, line)
            await _say(talk, MORE)
            assert talk.system == SYSTEM
            await talk.branch.close()


async def _say(talk: Talk, words: str) -> None:
    async with talk.ask(words) as turn:
        said = "".join([event.text async for event in turn if isinstance(event, kv.events.TextDelta)])
    assert said == ANSWER


async def by_server(folder: Path, seen: Seen) -> None:
    """The same conversation in three protocols, and a system prompt alone."""
    system, user = {"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}
    called = {"role": "assistant", "content": None, "tool_calls": [calling("call00000", "weather", '{"city": "Oslo"}')]}
    result = {"role": "tool", "tool_call_id": "call00000", "content": RESULT}
    more = [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": MORE}]
    async with opened(folder, seen) as ctx, serving_of(ctx) as served:
        for protocol in ("chat", "responses", "messages"):
            for messages in ([system, user], [system, user, called, result], [system, user, called, result, *more]):
                answered = await ask(served, protocol, False, messages, tools=[WEATHER])
                assert not answered.error, (protocol, answered.error)
                assert answered.text == ANSWER or len(answered.calls) == 1, answered
        answered = await ask(served, "chat", False, [{"role": "system", "content": f"{SYSTEM} {RESULT}"}])
        assert answered.text == ANSWER, answered


DOORS: Mapping[str, Callable[[Path, Seen], Awaitable[None]]] = {
    "agent": by_agent,
    "chat": by_chat,
    "serve": by_server,
}


def try_doors(template: str) -> dict[str, tuple[Seen, str]]:
    """What each door of a model with a template shows the model, and why it does not open."""
    found: dict[str, tuple[Seen, str]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = with_template(template, Path(place) / "model")
        for door, go in DOORS.items():
            seen, why = Seen(), ""
            try:
                anyio.run(go, folder, seen)
            except BaseException as error:
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                why = f"{type(error).__name__}: {error}"
            found[door] = seen, why
    return found


def try_all(folder: Path) -> dict[str, dict[str, str]]:
    """Why which door stays closed under the templates of a folder, by their names; prints a line for each."""
    closed: dict[str, dict[str, str]] = {}
    files = sorted(folder.rglob("*.jinja"))
    for file in files:
        doors = try_doors(file.read_text())
        closed[file.stem] = {door: why for door, (_, why) in doors.items() if why}
        marks = "  ".join(f"{door} {'no ' if why else 'yes'}" for door, (_, why) in doors.items())
        print(f"{file.stem[:52]:52}  {marks}  {doors['agent'][0].begun:5} tokens before the question", flush=True)
        for door, why in closed[file.stem].items():
            print(f"    {door}: {why}")
    for door in DOORS:
        print(f"{door}: {sum(door not in whys for whys in closed.values())} of {len(files)} templates")
    return closed


if __name__ == "__main__":
    try_all(Path(sys.argv[1]))
