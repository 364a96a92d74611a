"""Random steps on conversations, each of which tells a small model what the branch must hold now.

One more step is a method of Steps whose name is in STEPS. What must hold of messages stands in `Talk`, which knows no
branch and no tokens.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

import agentkv as kv
from agentkv.agents.tool_runner import ERROR
from agentkv.testing.replies import Reply

CITIES = ("Oslo", "Tolvik", "Brasno", "Riga")
STEPS = {
    "turn": 10, "streamed": 4, "step": 5, "left": 4, "cancelled": 3, "failing": 3, "forbidden": 2, "ask": 3, "fork": 4,
    "rollback": 4, "adopt": 2, "close": 2, "save": 1,
}  # fmt: skip
MOST_TOKENS, MOST_BRANCHES = 700, 8
BESIDE = ("", "", "I look.", 'Like {"type": "city"}')  # text before calls; the last is held back until a call begins
Told = tuple[str, str, tuple[str, ...]]  # role, content, cities of the calls


@dataclass
class Talk:
    """What one branch must hold: messages, and the places that were marked."""

    told: list[Told] = field(default_factory=list)
    marks: list[tuple[kv.Mark, int]] = field(default_factory=list)  # with how many messages

    def copy(self) -> Talk:
        return Talk([*self.told], [*self.marks])


def spelled(rng: random.Random, cities: tuple[str, ...], beside: str = "") -> Reply:
    """Calls, as one of the ways in which models write them; with text beside them as the format has it."""
    if beside:
        return [beside, *(kv.testing.call("weather", city=city) for city in cities)]
    calls = [json.dumps({"name": "weather", "arguments": {"city": city}}) for city in cities]
    python = ", ".join(f'weather(city="{city}")' for city in cities)
    ways: list[Reply] = [
        [kv.testing.call("weather", city=city) for city in cities],
        "```json\n" + "\n".join(calls) + "\n```",
        "\n".join(calls),
        f"[{', '.join(calls)}]",
        f"[{python}]",
    ]
    return rng.choice(ways)


class Steps:
    """The branches of a Context whose replies are made up here, and what each must hold."""

    def __init__(self, ctx: kv.Context, seed: int, files: Path) -> None:
        self.ctx, self.rng, self.files = ctx, random.Random(seed), files
        self.script: list[Reply] = []
        self.talks: dict[kv.Branch, Talk] = {}
        self.counts: dict[str, int] = {}
        self.ran: list[str] = []
        self.fails = False
        self.agent = kv.Agent("You are Nano.", tools=[kv.tool(self._weather(), name="weather", on_error="raise")])

    def _weather(self) -> Any:
        async def weather(city: str) -> str:
            """The weather in a city."""
            self.ran.append(city)
            await self.some_ticks()
            if self.fails:
                raise LookupError(city)
            return f"rain in {city}"

        return weather

    async def some_ticks(self) -> None:
        """What tools and readers take now and then, so that all that can happen meanwhile does."""
        for _ in range(self.rng.choice([1, 1, 2, 5, 30])):
            await checkpoint()

    def reply(self, prompt: str) -> Reply:
        return self.script.pop(0)

    def plan(self) -> list[Told]:
        """The script of one turn, and the messages that it makes."""
        rng, told = self.rng, list[Told]()
        free = rng.sample(CITIES, len(CITIES))  # what is called again is not run
        for _ in range(rng.randint(0, 2)):
            cities = tuple(free.pop() for _ in range(rng.randint(1, 2)))
            beside = rng.choice(BESIDE)
            self.script.append(spelled(rng, cities, beside))
            told.append(("assistant", beside, cities))
            told += [("tool", f"rain in {city}", ()) for city in cities]
        answer = rng.choice(["Fine.", "It rains there.", 'Say {"a": 1}.', "So be it: <b>rain</b>"])
        self.script.append(answer)
        return [*told, ("assistant", answer, ())]

    async def one(self) -> None:
        """One step, and a look at all branches."""
        if not self.talks:
            branch = await self.agent.trunk(self.ctx)
            self.talks[branch] = Talk([("system", "You are Nano.", ())])
        name = self.rng.choices(list(STEPS), list(STEPS.values()))[0]
        branch = self.rng.choice(list(self.talks))
        if len(branch) > MOST_TOKENS:
            name = "close"
        self.ran.clear()
        await getattr(self, name)(branch, self.talks.get(branch))
        self.script.clear()
        self.counts[name] = self.counts.get(name, 0) + 1
        for each, talk in self.talks.items():
            assert told_of(each) == talk.told, name
            if each.messages and not each.messages[-1].calls:
                talk.marks.append((each.mark(), len(talk.told)))
                del talk.marks[:-6]

    def question(self) -> Told:
        return ("user", self.rng.choice(["Weather?", "And there?", "Who are you?"]), ())

    async def turn(self, branch: kv.Branch, talk: Talk) -> None:
        asked, made = self.question(), self.plan()
        run = await self.agent.run(branch, asked[1])
        cities = [city for each in made for city in each[2]]
        assert [call.arguments["city"] for call in run.calls] == cities
        assert sorted(self.ran) == sorted(cities)
        assert run.output == made[-1][1]
        talk.told += [asked, *made]

    async def streamed(self, branch: kv.Branch, talk: Talk) -> None:
        asked, made = self.question(), self.plan()
        text = ""
        async with self.agent.stream(branch, asked[1], keep_partial=self.rng.random() < 0.5) as events:
            async for event in events:
                text += event.text if isinstance(event, kv.events.TextDelta) else ""
                await self.some_ticks()
        assert text == "".join(content for role, content, _ in made if role == "assistant")
        talk.told += [asked, *made]

    async def step(self, branch: kv.Branch, talk: Talk) -> None:
        asked, made = self.question(), self.plan()
        await branch.extend([{"role": "user", "content": asked[1]}])
        talk.told += [asked, *made]
        while not (await self.agent.step(branch)).done:
            pass

    async def left(self, branch: kv.Branch, talk: Talk) -> None:
        """A stream that is left somewhere; with keep_partial what was read stays."""
        asked, made = self.question(), self.plan()
        keeps, most = self.rng.random() < 0.5, self.rng.randint(0, 9)
        text, done = "", False
        async with self.agent.stream(branch, asked[1], keep_partial=keeps) as events:
            async for event in events:
                text += event.text if isinstance(event, kv.events.TextDelta) else ""
                done = isinstance(event, kv.events.Finished)
                most -= 1
                if most < 0:
                    break
                await self.some_ticks()
        if done:
            talk.told += [asked, *made]
        elif keeps:
            kept = told_of(branch)[len(talk.told) :]
            assert kept[:1] in ([], [asked])
            check_kept(kept[1:], made)
            assert "".join(content for role, content, _ in kept if role == "assistant").strip() == text.strip()
            await branch.rollback(branch.messages[len(talk.told)].start if kept else len(branch))

    async def cancelled(self, branch: kv.Branch, talk: Talk) -> None:
        asked, made = self.question(), self.plan()
        done, ticks = [], self.rng.randint(0, 60)
        async with anyio.create_task_group() as group:

            async def turn() -> None:
                await self.agent.run(branch, asked[1])
                done.append(True)

            group.start_soon(turn)
            for _ in range(ticks):
                await checkpoint()
            group.cancel_scope.cancel()
        if done:
            talk.told += [asked, *made]

    async def failing(self, branch: kv.Branch, talk: Talk) -> None:
        asked, made = self.question(), self.plan()
        self.fails, failed = True, list[kv.ToolFailed]()
        try:
            await self.agent.run(branch, asked[1])
            talk.told += [asked, *made]
        except kv.ToolFailed as error:
            failed.append(error)
        finally:
            self.fails = False
        assert len(failed) == (len(made) > 1)  # every call fails
        assert all(error.run is not None and error.run.calls for error in failed)

    async def forbidden(self, branch: kv.Branch, talk: Talk) -> None:
        """Nothing may be called: all of it is text."""
        asked = self.question()
        self.script = ["Fine."]
        run = await self.agent.run(branch, asked[1], tool_choice="none")
        assert run.calls == ()
        talk.told += [asked, ("assistant", "Fine.", ())]

    async def ask(self, branch: kv.Branch, talk: Talk) -> None:
        """A question that is put and taken back."""
        mark = branch.mark()
        await branch.extend([{"role": "user", "content": "Well?"}])
        await branch.rollback(mark)

    async def fork(self, branch: kv.Branch, talk: Talk) -> None:
        if len(self.talks) < MOST_BRANCHES:
            self.talks[await branch.fork()] = Talk([*talk.told])

    async def rollback(self, branch: kv.Branch, talk: Talk) -> None:
        good = [(mark, count) for mark, count in talk.marks if count <= len(talk.told)]
        if good:
            mark, count = self.rng.choice(good)
            await branch.rollback(mark)
            del talk.told[count:]
            talk.marks = [(each, n) for each, n in talk.marks if each.length <= mark.length]

    async def adopt(self, branch: kv.Branch, talk: Talk) -> None:
        kid = await branch.fork()
        theirs = talk.copy()
        await self.turn(kid, theirs)
        await branch.adopt(kid)
        talk.told = theirs.told

    async def close(self, branch: kv.Branch, talk: Talk) -> None:
        del self.talks[branch]
        await branch.close()

    async def save(self, branch: kv.Branch, talk: Talk) -> None:
        path = self.files / "talk"
        await branch.save(path)
        loaded = await self.ctx.load(path)
        assert loaded.tokens == branch.tokens
        del self.talks[branch]
        await branch.close()
        self.talks[loaded] = Talk(talk.told)


def check_kept(kept: list[Told], made: list[Told]) -> None:
    """Is what was kept what was made, as far as it goes? The last message may lack its end, but no call its result."""
    last = max((index for index, told in enumerate(kept) if told[0] == "assistant"), default=None)
    for index, (one, other) in enumerate(zip(kept, made, strict=False)):
        assert one[0] == other[0]
        if index == last:
            assert other[1].startswith(one[1])
            assert other[2][: len(one[2])] == one[2]
            assert len(kept) == last + 1 + len(one[2])
        else:
            assert one[2] == other[2]
            assert one[1] == other[1] or (one[0] == "tool" and one[1].startswith(ERROR))


def told_of(branch: kv.Branch) -> list[Told]:
    """A branch's messages, as the oracle says them."""
    return [
        (message.role, message.content, tuple((call.arguments or {})["city"] for call in message.calls))
        for message in branch.messages
    ]
