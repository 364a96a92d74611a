"""A process whose turns work on files with a journal, for `test_files` to kill.

Its replies are scripted: the calls of a turn are a function of the seed and of the number of its question. All of its
tools are idempotent, so that what is made again does no more.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import agentkv as kv
from agentkv.testing.replies import Reply

from .talks import Counter, serve

TURNS = 2
NAMES = ("a", "b", "sub/c", "sub/d")

_ASKED = re.compile(r"question (\d+)")


def plan(seed: int, question: int) -> list[list[dict[str, str]]]:
    """The calls of each round of a turn, by their arguments."""
    draw = random.Random(f"{seed}:{question}")
    return [
        [
            {"what": draw.choice(("write", "write", "append", "remove")), "file": name, "text": f"{question}.{at}.{n};"}
            for n, name in enumerate(draw.sample(NAMES, draw.randint(1, 2)))
        ]
        for at in range(draw.randint(1, 3))
    ]


def reply(seed: int, text: str) -> Reply:
    """The next message after a text: the first round of the last question's plan whose calls are not there."""
    asked = list(_ASKED.finditer(text))[-1]
    since = text[asked.end() :]
    for calls in plan(seed, int(asked[1])):
        if calls[0]["text"] not in since:
            return [kv.testing.call("change", **each) for each in calls]
    return f"answer {asked[1]}"


def change(folder: Path, what: str, file: str, text: str) -> None:
    """What the tool does; twice is as good as once."""
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    if what == "remove":
        path.unlink(missing_ok=True)
    elif what == "write":
        path.write_text(text)
    elif text not in (path.read_text() if path.exists() else ""):
        with path.open("a") as opened:
            opened.write(text)


def wanted(seed: int) -> dict[str, str]:
    """The files at the end, by a plain folder's rules."""
    files = {"a": "begin;"}
    for question in range(TURNS):
        for calls in plan(seed, question):
            for each in calls:
                match each["what"]:
                    case "remove":
                        files.pop(each["file"], None)
                    case "write":
                        files[each["file"]] = each["text"]
                    case "append":
                        files[each["file"]] = files.get(each["file"], "") + each["text"]
    return files


async def talk(folder: Path, seed: int, counter: Counter) -> None:
    """Goes on with what is left, takes the turns that are missing, and applies the files at the end."""

    @kv.tool(idempotent=True, early=False)
    def tool(context: kv.RunContext[Any], what: str, file: str, text: str) -> str:
        """Changes a file."""
        counter.point()
        change(context.workspace, what, file, text)
        counter.point()
        return "done"

    agent = kv.Agent("You are Nano.", tools=[kv.tool(name="change", idempotent=True, early=False)(tool.function)])
    journal, workspace = kv.Journal(folder / "runs.db"), kv.Workspace(folder / "project")
    async with kv.testing.replies(lambda text: reply(seed, text), capacity=4096, threads=1, journal=journal) as ctx:
        async for left in journal.unfinished(ctx):
            await left.resume(agent)
        try:
            branch = await journal.branch(ctx, "talk")
        except kv.JournalError:
            branch = await agent.trunk(ctx, workspace=workspace)
            await journal.track(branch, "talk")
        done = sum(message.role == "user" for message in branch.messages)
        for question in range(done, TURNS):
            await agent.run(branch, f"question {question}")
        assert branch.workspace is not None
        counter.point()
        await branch.workspace.apply()
        (folder / "done").touch()


if __name__ == "__main__":
    serve(talk)
