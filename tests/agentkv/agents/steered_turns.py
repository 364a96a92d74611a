"""Turns of nano that are steered, paused, stopped and forked at random moments, and what must hold of each afterwards.

One more thing to do to a turn is a method of SteeredTurns whose name is in VERBS.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from anyio.lowlevel import checkpoint

import agentkv as kv
from agentkv.agents.control import Words

from .conftest import as_tool, desk_agent

VERBS = {"steer": 4, "at_once": 4, "pause": 4, "stop": 1, "fork": 1}
QUESTIONS = ("What is the weather in Tolvik and in Brasno?", "How many Lumora are in stock?", "Who are you?")
WORDS = ("And in Oslo?", "What is the weather in Riga?", "How many Lumora are in stock?", "Who are you?")
MOST_STEERS = 3  # of a turn, so that it ends


@dataclass
class Steered:
    """One turn: the task, and what was done to it."""

    run: kv.RunningTurn[str]
    question: str
    before: list[int]
    rng: random.Random
    words: list[Words] = field(default_factory=list)
    keeps: bool | None = None  # whether it was stopped, and kept its work
    forks: list[tuple[kv.RunningTurn[str], list[str]]] = field(default_factory=list)  # with the words they have


class SteeredTurns:
    """Random turns on the branches of one Context."""

    def __init__(self, ctx: kv.Context, seed: int) -> None:
        self.ctx, self.rng = ctx, random.Random(seed)
        self.counts: dict[str, int] = {}
        self.agent = desk_agent(tools=[as_tool("weather"), as_tool("stock", early=False)], max_rounds=12)

    async def turn(self, trunk: kv.Branch) -> None:
        """One turn on a fork, and a look at what it left."""
        branch = await trunk.fork()
        question = self.rng.choice(QUESTIONS)
        run = self.agent.start(branch, question)
        steered = Steered(run, question, branch.tokens, random.Random(self.rng.random()))
        try:
            await self._play(steered)
            await run
        except kv.TurnStopped:
            assert steered.keeps is not None
            self._count("stopped")
        except kv.LimitReached:  # nano babbles where a conversation is none that it knows
            steered.keeps = False
            self._count("limit")
        else:
            steered.keeps = None
            self._count("done")
        await self._check(steered)
        for fork, words in steered.forks:
            await self._check_fork(steered, fork, words)
        await branch.close()

    async def _check_fork(self, turn: Steered, fork: kv.RunningTurn[str], words: list[str]) -> None:
        try:
            await fork
            said = [message.content for message in fork.branch.messages if message.role == "user"]
            assert said == [turn.question, *words]
            await self._check_whole(fork.branch)
        except kv.LimitReached:
            assert fork.branch.tokens == turn.before
        await fork.branch.close()

    async def _play(self, turn: Steered) -> None:
        due = turn.rng.randint(0, 8)
        async for _ in turn.run.events():
            due -= 1
            if due < 0 and not turn.run.done and turn.keeps is None:
                due = turn.rng.randint(0, 12)
                name = turn.rng.choices(list(VERBS), list(VERBS.values()))[0]
                await getattr(self, name)(turn)
                self._count(name)

    async def steer(self, turn: Steered, at_once: bool = False) -> None:
        if len(turn.words) < MOST_STEERS:
            try:
                turn.words.append(turn.run.steer(turn.rng.choice(WORDS), at_once))
            except kv.TurnNotRunning:
                self._count("too late")

    async def at_once(self, turn: Steered) -> None:
        await self.steer(turn, at_once=True)

    async def pause(self, turn: Steered) -> None:
        try:
            turn.run.pause()
        except kv.TurnNotRunning:
            return
        for _ in range(turn.rng.randint(0, 20)):
            await checkpoint()
        if turn.rng.random() < 0.3:
            await self.steer(turn, at_once=turn.rng.random() < 0.5)
        turn.run.resume()

    async def stop(self, turn: Steered) -> None:
        keep = turn.rng.random() < 0.5
        turn.run.stop(keep)
        if turn.run._control.stopped:
            turn.keeps = keep

    async def fork(self, turn: Steered) -> None:
        if turn.forks:
            return
        try:
            forks = await turn.run.fork(turn.rng.randint(1, 2))
        except kv.TurnNotRunning:
            return
        entered = [message.content for message in forks[0].branch.messages if message.role == "user"][1:]
        for fork in forks:
            waiting = [words.text for words in fork._control.waiting]
            if turn.rng.random() < 0.5:
                waiting.append(turn.rng.choice(WORDS))
                fork.steer(waiting[-1], at_once=turn.rng.random() < 0.5)
            turn.forks.append((fork, [*entered, *waiting]))

    async def _check(self, turn: Steered) -> None:
        branch = turn.run.branch
        if turn.keeps is False:
            assert branch.tokens == turn.before
            return
        said = [message for message in branch.messages if message.role == "user"]
        entered = [words.text for words in turn.words if words.entered]
        assert [message.content for message in said] == [turn.question, *entered][: len(said)]
        assert len(said) == 1 + len(entered) or (turn.keeps and not said)
        for index, message in enumerate(branch.messages):
            results = branch.messages[index + 1 : index + 1 + len(message.calls)]
            if index + 1 + len(message.calls) < len(branch.messages) or turn.keeps is None:
                assert [result.call_id for result in results] == [made.id for made in message.calls]
        if turn.keeps is None:
            await self._check_whole(branch)

    async def _check_whole(self, branch: kv.Branch) -> None:
        """Its cells are those of its tokens; behind the last words, the turn said what an undisturbed one says."""
        fresh = await self.ctx.branch(branch.tokens)
        np.testing.assert_array_equal(await fresh.logits(), await branch.logits())
        await fresh.close()
        asked = [message for message in branch.messages if message.role == "user"][-1]
        again = await branch.fork()
        await again.rollback(asked.start)
        await self.agent.run(again, [{"role": "user", "content": asked.content}])
        assert again.tokens == branch.tokens
        await again.close()

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


async def steered_turns(ctx: kv.Context, seed: int, turns: int, at_once: int = 3) -> dict[str, int]:
    """So many turns, some of them beside each other; nothing is left of any. Returns how often what happened."""
    import anyio

    from .before import Before

    steered = SteeredTurns(ctx, seed)
    trunk = await steered.agent.trunk(ctx)
    before = await Before.of(ctx, trunk)

    async def work() -> None:
        for _ in range(turns // at_once):
            await steered.turn(trunk)

    async with anyio.create_task_group() as group:
        for _ in range(at_once):
            group.start_soon(work)
    await before.check()
    return steered.counts


def least(counts: dict[str, int], *names: str) -> Any:
    """How often the rarest of these happened."""
    return min(counts.get(name, 0) for name in names)
