"""Words that enter a turn, pauses, and the end before its end; as a task of its own, and as a stream."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import pytest
from anyio.lowlevel import checkpoint

import agentkv as kv
from agentkv.agents.control import SteerableTurn
from tests.waiting import NEVER, until

from .conftest import TWO_CALLS, OpenDesk, SlowReplies, desk_agent

pytestmark = pytest.mark.anyio

call = kv.testing.call
THREE = "One is whole. Two as well. Three is nev"


class Taken(Protocol):
    """A turn in progress: its verbs, its events and its outcome."""

    turn: SteerableTurn

    def events(self) -> AsyncIterator[kv.events.Event]: ...
    async def outcome(self) -> kv.Run[str]: ...


@dataclass
class Started:
    turn: kv.RunningTurn[str]

    def events(self) -> AsyncIterator[kv.events.Event]:
        return self.turn.events()

    async def outcome(self) -> kv.Run[str]:
        return await self.turn


@dataclass
class Streamed:
    turn: kv.AgentStream[str]

    def events(self) -> AsyncIterator[kv.events.Event]:
        return self.turn

    async def outcome(self) -> kv.Run[str]:
        async for _ in self.turn:
            pass
        return self.turn.run


Take = Callable[..., AbstractAsyncContextManager[Taken]]


@pytest.fixture(params=["start", "stream"])
def take(request: pytest.FixtureRequest) -> Take:
    """Takes a turn, one way or the other."""

    @asynccontextmanager
    async def take(agent: kv.Agent[Any, str], branch: kv.Branch, prompt: str, **how: Any) -> AsyncIterator[Taken]:
        if request.param == "start":
            yield Started(agent.start(branch, prompt, **how))
        else:
            async with agent.stream(branch, prompt, **how) as stream:
                yield Streamed(stream)

    return take


def said(branch: kv.Branch) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in branch.messages[1:]]


async def text_with(events: AsyncIterator[kv.events.Event], part: str) -> str:
    """Reads on until the text has this part."""
    text = ""
    async for event in events:
        text += event.text if isinstance(event, kv.events.TextDelta) else ""
        if part in text:
            return text
    raise AssertionError(text)


def weather_agent(gate: anyio.Event | None = None, **options: Any) -> kv.Agent[None, str]:
    """An agent with a tool that waits for the gate."""

    async def weather(city: str) -> str:
        """The weather in a city."""
        if gate is not None:
            await gate.wait()
        return f"rain in {city}"

    tool = kv.tool(name="weather", **options.pop("tool", {}))(weather)
    return kv.Agent("You are Nano.", tools=[tool], **options)


@pytest.mark.parametrize(
    ("reply", "heard", "kept"),
    [
        (THREE + "er told to the end", "Three is nev", "One is whole. Two as well."),
        ("Nothing is whole here and goes on and on", "here", None),
        ("Steps:\n1. Take it away", "Take", "Steps:"),
    ],
)
async def test_words_enter_at_once_behind_a_whole_sentence(
    slow_replies: SlowReplies, take: Take, reply: str, heard: str, kept: str | None
) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies([reply, "Fine."]) as ctx:
        branch = await agent.trunk(ctx)
        async with take(agent, branch, "Tell me.") as turn:
            events = turn.events()
            await text_with(events, heard)
            words = turn.turn.steer("Shorter!", at_once=True)
            seen = [event async for event in events]
            run = await turn.outcome()
        await words
        steered = next(event for event in seen if isinstance(event, kv.events.Steered))
        assert (steered.text, steered.at_once, steered.kept.strip()) == ("Shorter!", True, kept or "")
        partial = [] if kept is None else [("assistant", kept)]
        expected = [("user", "Tell me."), *partial, ("user", "Shorter!"), ("assistant", "Fine.")]
        assert [(role, text.strip()) for role, text in said(branch)] == expected
        assert (run.text, run.rounds, run.messages) == ("Fine.", 1, tuple(branch.messages[1:]))
        fresh = await ctx.branch([{"role": "system", "content": "You are Nano."}])
        await fresh.extend([{"role": role, "content": text} for role, text in said(branch)[:-1]])
        assert branch.text.replace(" <|im_end|>", "<|im_end|>").startswith(fresh.text)  # ". " is one token of nano's


async def test_words_enter_between_messages_in_order(slow_replies: SlowReplies, take: Take) -> None:
    gate = anyio.Event()
    agent = weather_agent(gate)
    async with slow_replies([[call("weather", city="Oslo")], "Rain.", "Snow."]) as ctx:
        branch = await agent.trunk(ctx)
        async with take(agent, branch, "And?") as turn:
            events = turn.events()
            async for event in events:
                if isinstance(event, kv.events.CallStarted):
                    break
            words = [turn.turn.steer("First."), turn.turn.steer("Second.", at_once=True)]
            assert not any(each.entered for each in words)
            gate.set()
            await text_with(events, "Rain")
            assert all(each.entered for each in words)
            turn.turn.steer("Third.")
            run = await turn.outcome()
        roles = [(role, text) for role, text in said(branch)]
        assert roles[2:] == [
            ("tool", "rain in Oslo"),
            ("user", "First."),
            ("user", "Second."),
            ("assistant", "Rain."),
            ("user", "Third."),
            ("assistant", "Snow."),
        ]
        assert (run.rounds, run.text, run.warnings) == (3, "Snow.", ())


async def test_a_call_that_has_begun_stays(slow_replies: SlowReplies, take: Take) -> None:
    reply = [call("weather", city="Oslo"), call("weather", city="Riga")]
    agent = weather_agent()
    ran: list[str] = []
    agent = kv.Agent("You are Nano.", tools=agent.tools, after_call=lambda _, record: ran.append(record.content))
    async with slow_replies([reply, "Fine."]) as ctx:
        branch = await agent.trunk(ctx)
        async with take(agent, branch, "And?") as turn:
            events = turn.events()
            async for event in events:
                if isinstance(event, kv.events.CallStarted):
                    break
            turn.turn.steer("Stop there!", at_once=True)
            run = await turn.outcome()
        assert ran == ["rain in Oslo"]
        assert [(c.name, c.arguments, c.status) for c in run.calls] == [("weather", {"city": "Oslo"}, "done")]
        assert [role for role, _ in said(branch)] == ["user", "assistant", "tool", "user", "assistant"]
        assert len(branch.messages[2].calls) == 1


async def test_a_call_that_has_not_begun_goes(slow_replies: SlowReplies, take: Take) -> None:
    reply = "First this. " + "Then that, as I " + "said"
    agent = weather_agent(tool={"early": False})
    async with slow_replies([[reply, call("weather", city="Oslo"), call("weather", city="Riga")], "Fine."]) as ctx:
        branch = await agent.trunk(ctx)
        calls = 0

        def steer(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                turn.turn.steer("No calls!", at_once=True)

        async with take(agent, branch, "And?") as turn:
            written = kv.agents.turn.Round._written  # type: ignore[attr-defined]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("agentkv.agents.turn.Round._written", lambda *a: (written(*a), steer())[0])
                run = await turn.outcome()
        assert run.calls == ()
        assert said(branch)[1:] == [("assistant", "First this."), ("user", "No calls!"), ("assistant", "Fine.")]


async def test_words_behind_the_last_round_are_refused(slow_replies: SlowReplies, take: Take) -> None:
    agent = kv.Agent("You are Nano.", max_rounds=1)
    async with slow_replies(["It is so."]) as ctx:
        branch = await agent.trunk(ctx)
        async with take(agent, branch, "And?") as turn:
            await text_with(turn.events(), "It")
            words = turn.turn.steer("One more.")
            run = await turn.outcome()
            with pytest.raises(kv.TurnNotRunning, match="before these words"):
                await words
            with pytest.raises(kv.TurnNotRunning, match="has ended"):
                turn.turn.steer("Too late.")
            with pytest.raises(kv.TurnNotRunning, match="has ended"):
                turn.turn.pause()
            turn.turn.resume()
            await turn.turn.stop()
        assert run.warnings == ("1 message of steer did not enter the turn: the turn ended before",)
        assert run.text == "It is so."


async def test_words_that_the_branch_does_not_take_are_refused(slow_replies: SlowReplies, take: Take) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies([THREE, "It goes on."], capacity=256) as ctx:
        branch = await agent.trunk(ctx)
        async with take(agent, branch, "And?") as turn:
            events = turn.events()
            await text_with(events, "Three")
            words = turn.turn.steer("word " * 400, at_once=True)
            run = await turn.outcome()
            with pytest.raises(kv.ContextFull):
                await words
        assert said(branch) == [("user", "And?"), ("assistant", "It goes on.")]
        assert len(run.warnings) == 1


@pytest.mark.parametrize("wrong", [("",), ("  ",), (5,), ("\ud800",)])
async def test_what_is_no_words_is_refused(slow_replies: SlowReplies, take: Take, wrong: tuple[Any]) -> None:
    async with slow_replies(["Fine."]) as ctx:
        agent = kv.Agent("You are Nano.")
        async with take(agent, await agent.trunk(ctx), "And?") as turn:
            with pytest.raises(kv.InvalidInput):
                turn.turn.steer(*wrong)
            with pytest.raises(kv.InvalidInput):
                turn.turn.stop(5)  # type: ignore[arg-type]
            assert (await turn.outcome()).text == "Fine."


async def test_a_pause_holds_tokens_and_calls_and_loses_nothing(slow_replies: SlowReplies, take: Take) -> None:
    gate = anyio.Event()
    agent = weather_agent(gate, max_seconds=NEVER)
    script = [["So be it. ", call("weather", city="Oslo"), call("weather", city="Riga")], "It rains there."]
    async with slow_replies(script) as ctx:
        trunk = await agent.trunk(ctx)
        branch, other = await trunk.fork(2)
        async with take(agent, branch, "And?") as turn:
            events, texts, started = turn.events(), 0, 0
            async for event in events:
                if isinstance(event, kv.events.TextDelta | kv.events.CallStarted):
                    turn.turn.pause()
                    turn.turn.pause()
                    assert turn.turn.paused
                    texts += isinstance(event, kv.events.TextDelta)
                    started += isinstance(event, kv.events.CallStarted)
                    await _settled(ctx)
                    before = branch.tokens
                    for _ in range(100):
                        await checkpoint()
                    assert branch.tokens == before
                    turn.turn.resume()
                    turn.turn.resume()
                    if started == 2:
                        gate.set()
            run = await turn.outcome()
        assert (started, run.text) == (2, "It rains there.")
        assert texts > 4
    async with kv.testing.replies(script) as ctx:
        other = await agent.trunk(ctx)
        undisturbed = await agent.run(other, "And?")
        assert branch.tokens == other.tokens
        assert run.usage == undisturbed.usage


async def _settled(ctx: kv.Context) -> None:
    """Returns once a generation that a pause ends has ended."""
    for _ in range(3):
        await ctx._core.loop.call(lambda _: None)


async def test_running_tools_go_on_in_a_pause(slow_replies: SlowReplies, take: Take) -> None:
    gate = anyio.Event()
    agent = weather_agent(gate)
    async with slow_replies([[call("weather", city="Oslo")], "Rain."]) as ctx:
        branch = await agent.trunk(ctx)
        async with take(agent, branch, "And?") as turn:
            events = turn.events()
            async for event in events:
                if isinstance(event, kv.events.CallStarted):
                    turn.turn.pause()
                    gate.set()
                if isinstance(event, kv.events.CallFinished):
                    break
            await _settled(ctx)
            generated = ctx.stats.generated
            for _ in range(100):
                await checkpoint()
            assert ctx.stats.generated == generated
            turn.turn.resume()
            assert (await turn.outcome()).text == "Rain."


async def test_a_pause_before_the_beginning_holds_the_first_message(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(["Fine."]) as ctx:
        branch = await agent.trunk(ctx)
        run = agent.start(branch, "And?")
        run.pause()
        words = run.steer("Well?", at_once=True)
        await until(lambda: len(branch.messages) == 2)
        for _ in range(100):
            await checkpoint()
        assert not run.done
        assert not words.entered
        run.resume()
        await run
        assert said(branch) == [("user", "And?"), ("user", "Well?"), ("assistant", "Fine.")]


async def test_the_clock_stands_in_a_pause(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.", max_seconds=NEVER)
    async with slow_replies(["Fine."]) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        run.pause()
        await until(lambda: len(run.branch.messages) == 2)
        bounds = run._control._bounds
        assert bounds is not None
        assert bounds._scope.deadline == math.inf
        run.resume()
        assert bounds._scope.deadline < math.inf
        await run


@pytest.mark.parametrize(("keep_partial", "keep", "kept"), [
    (False, None, False), (True, None, True), (False, True, True), (True, False, False),
])  # fmt: skip
@pytest.mark.parametrize("paused", [False, True])
async def test_stop_ends_a_turn(
    slow_replies: SlowReplies, take: Take, keep_partial: bool, keep: bool | None, kept: bool, paused: bool
) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies([THREE]) as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        async with take(agent, branch, "And?", keep_partial=keep_partial) as turn:
            text = await text_with(turn.events(), "Two")
            if paused:
                turn.turn.pause()
                await _settled(ctx)
            words = turn.turn.steer("Lost.")
            await turn.turn.stop(keep)
            turn.turn.stop(not keep)
            with pytest.raises(kv.TurnNotRunning):
                await words
            with pytest.raises(kv.TurnStopped) as caught:
                await turn.outcome()
        assert caught.value.run is not None
        assert caught.value.run.text.startswith(text)
        if kept:
            assert said(branch) == [("user", "And?"), ("assistant", caught.value.run.text)]
        else:
            assert branch.tokens == before


async def test_stop_while_tools_run_keeps_their_results(slow_replies: SlowReplies, take: Take) -> None:
    agent = weather_agent(anyio.Event())
    async with slow_replies([[call("weather", city="Oslo")]]) as ctx:
        branch = await agent.trunk(ctx)
        async with take(agent, branch, "And?") as turn:
            async for event in turn.events():
                if isinstance(event, kv.events.CallStarted):
                    break
            await until(lambda: branch.messages[-1].calls)
            turn.turn.stop(keep=True)
            with pytest.raises(kv.TurnStopped) as caught:
                await turn.outcome()
        assert caught.value.run is not None
        assert [record.status for record in caught.value.run.calls] == ["cancelled"]
        assert [role for role, _ in said(branch)] in (["user", "assistant", "tool"], ["user", "assistant"])


async def test_tools_steer_their_own_turn(slow_replies: SlowReplies) -> None:
    run: kv.RunningTurn[str]

    async def weather(city: str) -> str:
        """The weather in a city."""
        run.steer(f"{city} is nice.")
        return "rain"

    agent = kv.Agent("You are Nano.", tools=[kv.tool(weather, name="weather")])
    async with slow_replies([[call("weather", city="Oslo")], "Rain."]) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        await run
        assert said(run.branch)[2:] == [("tool", "rain"), ("user", "Oslo is nice."), ("assistant", "Rain.")]


async def test_words_are_another_question_to_what_repeats(slow_replies: SlowReplies) -> None:
    """The same call runs again behind words: they may ask for it."""
    ran: list[str] = []

    async def weather(city: str) -> str:
        """The weather in a city."""
        ran.append(city)
        return "rain"

    agent = kv.Agent("You are Nano.", tools=[kv.tool(weather, name="weather")])
    same = [call("weather", city="Oslo")]
    async with slow_replies([same, "Rain.", same, "Rain again."]) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        await text_with(run.events(), "Rain")
        run.steer("Look again.")
        assert (await run).text == "Rain again."
    assert ran == ["Oslo", "Oslo"]


@pytest.mark.parametrize("sampling", [None, kv.Sampling(temperature=1.3, seed=5, repetition_penalty=1.2)])
async def test_a_pause_changes_no_token(open_desk: OpenDesk, sampling: kv.Sampling | None) -> None:
    agent = desk_agent("stock", "weather", sampling=sampling, max_message_tokens=60)
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        mark, texts = branch.mark(), list[list[int]]()
        for pauses in (False, True):
            run = agent.start(branch, TWO_CALLS, keep_partial=True)
            try:
                async for event in run.events():
                    if pauses and not isinstance(event, kv.events.Finished):
                        with suppress(kv.TurnNotRunning):  # the reader is behind
                            run.pause()
                        await _settled(ctx)
                        run.resume()
            except kv.LimitReached:
                pass  # the same one
            texts.append(branch.tokens)
            await branch.rollback(mark)
        assert texts[0] == texts[1]
