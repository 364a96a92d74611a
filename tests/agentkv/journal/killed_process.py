"""A process that takes turns with a journal, for `test_killed_turns` to kill.

Its replies are scripted: a turn's plan is a function of the seed and of the number of its question. Tools write what
they do to a ledger, one line for each time that they run.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import anyio

import agentkv as kv
from agentkv.testing.replies import Reply

from .talks import Counter, serve

TURNS = 3
TOOLS = ("pay", "look", "boss", "helper")
CAPACITY = 8192

_ASKED = re.compile(r"(question|You help\.\s+job) (\d+(?:\.\d+)*)")  # the latter is a sub-agent's


def plan(seed: int, question: int) -> list[list[tuple[str, str]]]:
    """The calls of each round of a turn: tool, and an argument that no other call has."""
    draw = random.Random(f"{seed}:{question}")
    rounds = range(draw.randint(0, 3))
    return [
        [(draw.choice(TOOLS), f"{question}.{at}.{n}") for n in range(draw.randint(1, 3))] for at in rounds
    ]  # fmt: skip


def reply(seed: int, text: str) -> Reply:
    """The next message after a text: the first round of the last question's plan whose calls are not there."""
    asked = list(_ASKED.finditer(text))[-1]
    number, since = asked[2], text[asked.end() :]
    if asked[1] != "question":  # it pays once
        made = f"{number}.0"
        return f"did {number}" if f'"{made}"' in since else kv.testing.call("pay", what=made)
    for calls in plan(seed, int(number)):
        if calls[0][1] not in since:
            return [
                kv.testing.call(name, **({"task": f"job {what}"} if name == "helper" else {"what": what}))
                for name, what in calls
            ]
    return f"answer {number}"


def agent_of(ledger: Path, counter: Counter) -> kv.Agent[None, str]:
    """An agent whose tools write to the ledger; one of its tools is another agent."""

    def enter(tool: str, what: str) -> str:
        counter.point()
        with ledger.open("a") as file:
            file.write(f"{tool} {what}\n")
        counter.point()
        return f"{tool} {what} done"

    def made(name: str, **options: Any) -> kv.Tool[Any, ..., Any]:
        async def run(what: str) -> str:
            await anyio.lowlevel.checkpoint()
            return enter(name, what)

        return kv.tool(name=name, description=f"to {name}", **options)(run)

    tools = [made("pay"), made("look", idempotent=True), made("boss", approve=True)]
    helper = kv.Agent("You help.", tools=tools)
    return kv.Agent("You are Nano.", tools=[*tools, helper.as_tool("helper", "does a task")])


async def talk(folder: Path, seed: int, counter: Counter) -> None:
    """Goes on with what is left, and takes the turns that are missing; writes what the branch holds at the end."""
    agent, journal = agent_of(folder / "ledger", counter), kv.Journal(folder / "runs.db")

    def approve(asked: kv.events.ApprovalAsked) -> bool:
        with (folder / "asked").open("a") as file:
            file.write(f"{asked.call.arguments['what']}\n")
        counter.point()
        if len(asked.call.arguments["what"]) % 2 == seed % 2:
            return asked.leave()
        return True

    async def answered(turn: Awaitable[Any]) -> None:
        """Takes a turn to its end: what it leaves is approved as by another process, and goes on."""
        try:
            await turn
        except kv.ApprovalPending as pending:
            for key in pending.keys:
                await kv.Journal(folder / "runs.db").answer(key, True)
                counter.point()
            async for left in journal.unfinished(ctx):
                await answered(left.resume(agent, approve=approve))

    options: dict[str, Any] = {"capacity": CAPACITY, "threads": 1, "journal": journal}
    async with kv.testing.replies(lambda text: reply(seed, text), **options) as ctx:
        async for left in journal.unfinished(ctx):
            await answered(left.resume(agent, approve=approve))
        try:
            branch = await journal.branch(ctx, "talk")
        except kv.JournalError:
            branch = await agent.trunk(ctx)
            await journal.track(branch, "talk")
        done = sum(message.role == "user" for message in branch.messages)
        for question in range(done, TURNS):
            await answered(agent.run(branch, f"question {question}", approve=approve))
            branch = await journal.branch(ctx, "talk")
        told = [(m.role, m.content, [(c.name, c.arguments) for c in m.calls]) for m in branch.messages]
        logits = (await branch.logits()).tobytes().hex()[:4096]
        (folder / "told").write_text(json.dumps([told, branch.tokens, logits]))
        (folder / "told").rename(folder / "done")


if __name__ == "__main__":
    serve(talk)
