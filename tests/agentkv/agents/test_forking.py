"""Forks of a turn in flight: each goes on from where the turn is."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.waiting import until

from .before import Before
from .conftest import SlowReplies
from .test_control import text_with

pytestmark = pytest.mark.anyio

call = kv.testing.call


def call_has_ended(run: kv.RunningTurn[Any], index: int) -> bool:
    """Is the outcome of that call there, and can the turn be forked?"""
    point = run._control._point
    return point is not None and index in point().records


async def test_forks_go_on_in_the_middle_of_a_message(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(lambda _: "One is whole. Two as well. And three.") as ctx:
        trunk = await agent.trunk(ctx)
        before = await Before.of(ctx, trunk)
        branch = await trunk.fork()
        run = agent.start(branch, "And?")
        text = await text_with(run.events(), "Two")
        forks = await run.fork(3)
        assert [fork.branch.parent for fork in forks] == [branch] * 3
        rest = [event.text async for event in forks[0].events() if isinstance(event, kv.events.TextDelta)]
        runs = [await each for each in (run, *forks)]
        assert {each.text for each in runs} == {"One is whole. Two as well. And three."}
        assert len("".join(rest)) <= len("One is whole. Two as well. And three.") - len(text)
        assert [fork.branch.tokens for fork in forks] == [branch.tokens] * 3
        assert {(each.usage, each.rounds, each.messages) for each in runs} == {(runs[0].usage, 1, runs[0].messages)}
        for each in (run, *forks):
            await each.branch.close()
        del run, runs, forks, each, branch
        await before.check()


@pytest.mark.parametrize("on_fork", ["share", "again"])
@pytest.mark.parametrize("early", [True, False])
async def test_calls_that_run_are_shared_or_made_again(slow_replies: SlowReplies, on_fork: Any, early: bool) -> None:
    gate, made = anyio.Event(), list[str]()

    @kv.tool(on_fork=on_fork, early=early)
    async def weather(city: str) -> str:
        """The weather in a city."""
        made.append(city)
        if city == "Riga":
            await gate.wait()
        return f"rain in {city}"

    agent = kv.Agent("You are Nano.", tools=[weather])
    calls = [call("weather", city="Oslo"), call("weather", city="Riga")]
    async with slow_replies(lambda prompt: "Rain." if "rain in" in prompt else calls) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        await until(lambda: "Riga" in made and call_has_ended(run, 0))
        forks = await run.fork(2)
        gate.set()
        runs = [await each for each in (run, *forks)]
        assert [each.text for each in runs] == ["Rain."] * 3
        assert [[record.content for record in each.calls] for each in runs] == [["rain in Oslo", "rain in Riga"]] * 3
        assert [fork.branch.tokens for fork in forks] == [run.branch.tokens] * 2
        assert sorted(made) == ["Oslo", *["Riga"] * (1 if on_fork == "share" else 3)]


async def test_a_shared_call_that_is_cancelled_is_made_by_the_fork(slow_replies: SlowReplies) -> None:
    gate, made = anyio.Event(), list[str]()

    @kv.tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        made.append(city)
        if len(made) == 1:
            await gate.wait()
        return "rain"

    agent = kv.Agent("You are Nano.", tools=[weather])
    script = lambda prompt: "Rain." if "rain" in prompt else [call("weather", city="Oslo")]  # noqa: E731
    async with slow_replies(script) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        await until(lambda: made)
        (fork,) = await run.fork(1)
        await run.stop()
        with pytest.raises(kv.TurnStopped):
            await run
        assert (await fork).text == "Rain."
        assert made == ["Oslo"] * 2


async def test_forks_of_a_paused_turn_are_paused_and_have_its_words(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(lambda _: "So be it.") as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        run.pause()
        run.steer("Go on.")
        (fork,) = await run.fork(1)
        assert fork.paused
        fork.steer("The other way.")
        fork.resume()
        assert (await fork).text == "So be it."
        run.resume()
        await run
        said = [[m.content for m in each.branch.messages if m.role == "user"] for each in (run, fork)]
        assert said == [["And?", "Go on."], ["And?", "Go on.", "The other way."]]


async def test_a_fork_that_is_stopped_goes_back_to_before_the_turn(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(lambda _: "One is whole. Two as well. And three.") as ctx:
        trunk = await agent.trunk(ctx)
        run = agent.start(await trunk.fork(), "And?")
        await text_with(run.events(), "Two")
        fork, kept = await run.fork(2)
        await fork.stop()
        kept.stop(keep=True)
        with pytest.raises(kv.TurnStopped) as caught:
            await kept
        assert fork.branch.tokens == trunk.tokens
        assert caught.value.run is not None
        assert caught.value.run.text.startswith("One is whole. T")
        assert kept.branch.messages[-1].content == caught.value.run.text
        assert (await run).text.endswith("three.")
        with pytest.raises(kv.TurnStopped):
            await fork


async def test_words_enter_a_fork_at_once(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    script = lambda prompt: "Well." if "Stop" in prompt else "One is whole. Two as well. And three."  # noqa: E731
    async with slow_replies(script) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        await text_with(run.events(), "Two")
        (fork,) = await run.fork(1)
        fork.steer("Stop!", at_once=True)
        assert (await fork).text == "Well."
        said = [(m.role, m.content) for m in fork.branch.messages[1:]]
        assert said[1:] == [("assistant", "One is whole."), ("user", "Stop!"), ("assistant", "Well.")]
        assert (await run).text.endswith("three.")


async def test_a_turn_that_has_ended_is_not_forked(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(["So be it."]) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        with pytest.raises(kv.InvalidInput):
            await run.fork(0)
        await run
        with pytest.raises(kv.TurnNotRunning):
            await run.fork(1)
