"""Scripted replies: real tokens, cells and tools under words that a test wrote."""

from __future__ import annotations

from typing import Any

import pytest

import agentkv as kv

pytestmark = pytest.mark.anyio

call = kv.testing.call


@kv.tool
async def weather(city: str) -> dict[str, object]:
    """Weather in a city."""
    if city == "Nowhere":
        raise kv.Retry("unknown city")
    return {"temp": len(city), "sky": "rainy"}


AGENT = kv.Agent("You are Nano, a desk agent.", tools=[weather])


async def test_an_agent_says_what_the_script_says() -> None:
    script = [["Let me see.", call("weather", city="Oslo"), call("weather", city="Rome")], "Rainy in both."]
    async with kv.testing.replies(script, capacity=1024) as ctx, await AGENT.trunk(ctx) as trunk:
        async with kv.testing.no_leaks(ctx):
            run = await AGENT.run(trunk, "How is the weather?")
        assert run.output == "Rainy in both."
        assert [(made.name, made.arguments) for made in run.calls] == [
            ("weather", {"city": "Oslo"}),
            ("weather", {"city": "Rome"}),
        ]
        assert [made.result for made in run.calls] == [{"temp": 4, "sky": "rainy"}] * 2
        assert run.rounds == 2
        assert "Let me see." in trunk.text
        assert '"temp": 4' in trunk.text


async def test_a_tool_that_asks_for_another_try_gets_one() -> None:
    script = [call("weather", city="Nowhere"), call("weather", city="Bergen"), "Rainy."]
    async with kv.testing.replies(script, capacity=1024) as ctx:
        run = await AGENT.run(await AGENT.trunk(ctx), "How is the weather in Nowhere?")
        assert run.rounds == 3
        assert run.calls[0].error is not None
        assert run.calls[1].result == {"temp": 6, "sky": "rainy"}


async def test_a_reply_rides_in_few_forwards_and_is_said_at_any_temperature() -> None:
    text = "It is sunny in Oslo, and it will stay so until the end of the week."
    async with kv.testing.replies([text, text], capacity=1024) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "?"}])
        mark = branch.mark()
        with kv.testing.count_forwards(ctx) as count:
            said = await branch.generate(max_tokens=200, sampling=kv.Sampling(temperature=2.0, seed=1))
        assert said.text == text
        assert said.finish_reason == "eos"
        assert count.generated == len(said.tokens)
        assert 0 < count.forwards < len(said.tokens) / 2
        forwards = count.forwards
        await branch.rollback(mark)
        async with branch.stream(max_tokens=200) as tokens:
            assert "".join([token.text async for token in tokens]) == text
        assert count.forwards == forwards  # it stands still behind its block


async def test_branches_at_once_are_answered_by_a_function() -> None:
    def reply(text: str) -> str:
        return "cold" if "Oslo" in text else "warm"

    async with kv.testing.replies(reply, capacity=1024) as ctx:
        trunk = await ctx.branch([{"role": "system", "content": "You are Nano, a desk agent."}])

        async def ask(city: str) -> str:
            async with await trunk.fork() as branch:
                await branch.extend([{"role": "user", "content": f"How is {city}?"}])
                return (await branch.generate()).text

        assert await kv.gather(*map(ask, ["Rome", "Oslo", "Cairo"])) == ["warm", "cold", "warm"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"tool_choice": "none"}, "does not allow '<tool_call>' after ''; this message takes no calls"),
        ({}, "does the agent have such a tool"),
    ],
)
async def test_a_script_is_told_why_its_call_cannot_be(how: dict[str, Any], said: str) -> None:
    async with kv.testing.replies([kv.testing.call("nothing", a=1)], capacity=2048) as ctx:
        agent = kv.Agent("You are Nano.", **{"tools": [weather], **how})
        with pytest.raises(kv.StepFailed, match=said):
            await agent.run(await agent.trunk(ctx), "Well?")


async def test_the_grammar_of_a_generation_holds_the_script_too() -> None:
    year = kv.Regex("[0-9]{4}")
    async with kv.testing.replies(["20a1", "203", "2031", "20311"], capacity=1024) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "?"}])
        before = branch.tokens
        with pytest.raises(
            kv.StepFailed, match="reply 1 of the script failed: the grammar of the generation does not allow"
        ):
            await branch.generate(output=year)
        with pytest.raises(kv.StepFailed, match=r"reply 2 of the script failed: .* does not allow the end after"):
            await branch.generate(output=year)
        assert branch.tokens == before
        assert (await branch.generate(output=year)).text == "2031"
        with pytest.raises(kv.StepFailed, match="reply 4"):
            await branch.generate(output=year)


async def test_a_script_that_calls_where_a_turn_must_answer_is_told_so() -> None:
    @kv.tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return "rain"

    calls = [kv.testing.call("weather", city=city) for city in ("Rome", "Oslo")]
    async with kv.testing.replies(calls, capacity=2048) as ctx:
        agent = kv.Agent("", tools=[weather], max_rounds=2)
        with pytest.raises(kv.StepFailed, match="this message takes no calls"):
            await agent.run(await agent.trunk(ctx), "How is Rome?")


async def test_what_ends_a_generation_ends_a_reply() -> None:
    async with kv.testing.replies(["one two three four five", "one two three"], capacity=1024) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "?"}])
        cut = await branch.generate(max_tokens=3)
        assert cut.finish_reason == "length"
        assert "one two three four five".startswith(cut.text)
        assert (await branch.generate(stop="two")).finish_reason == "stop"


async def test_replies_that_are_missing_or_left_over_are_told() -> None:
    async with kv.testing.replies(["a"], capacity=256) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "?"}])
        await branch.generate()
        length = len(branch)
        with pytest.raises(kv.InvalidInput, match="all 1 replies of the script were given"):
            await branch.generate()
        assert len(branch) == length
    with pytest.raises(AssertionError, match=r"nobody asked for: \['b', 'c'\]"):
        async with kv.testing.replies(["a", "b", "c"], capacity=256) as ctx:
            await (await ctx.branch([{"role": "user", "content": "?"}])).generate()
    with pytest.raises(ValueError, match="mine"):  # an error of the block's own comes first
        async with kv.testing.replies(["a"], capacity=256):
            raise ValueError("mine")
    for wrong in ("text", 5, None):
        with pytest.raises(kv.InvalidInput, match="script is"):
            async with kv.testing.replies(wrong):  # type: ignore[arg-type]
                pass
    async with kv.testing.replies([7], capacity=256) as ctx:  # type: ignore[list-item]
        branch = await ctx.branch([{"role": "user", "content": "?"}])
        with pytest.raises(kv.InvalidInput, match="a reply is text"):
            await branch.generate()


async def test_leaks_are_named() -> None:
    async with kv.testing.replies([], capacity=256) as ctx:
        trunk = await ctx.branch([{"role": "user", "content": "?"}])
        async with kv.testing.no_leaks(ctx):
            await trunk.fork(3)  # nobody refers to them
        kept: list[kv.Branch] = []
        with pytest.raises(AssertionError, match="left behind and still referred to: branch"):
            async with kv.testing.no_leaks(ctx):
                kept.append(await trunk.fork())
