"""Calls in another spelling than the model's format, in agents: taken, counted, steered; and turned off."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

import agentkv as kv
from agentkv.agents.call_decision import call_probability

from .conftest import NO_CALL, ONE_CALL, OpenDesk, as_tool, desk_agent

pytestmark = pytest.mark.anyio

CALL = json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})
FENCED = f"```json\n{CALL}\n```"
LISTED = f"```json\n[{CALL}]"


def weather(city: str) -> dict[str, int]:
    return {"temp": 3}


def agent(**options: Any) -> kv.Agent[Any, str]:
    return desk_agent(tools=[as_tool("weather", weather)], **options)


@pytest.mark.parametrize("reply", [FENCED, CALL, f"I look.\n{FENCED}", 'weather(city="Oslo")'])
async def test_a_call_in_another_spelling_runs(reply: str) -> None:
    async with kv.testing.replies([reply, "It has 3 degrees."]) as ctx:
        branch = await agent().trunk(ctx)
        run = await agent().run(branch, ONE_CALL)
        assert [(call.status, call.result) for call in run.calls] == [("done", {"temp": 3})]
        assert (run.text, run.rescued) == ("It has 3 degrees.", 1)
        assert run.calls[0].rescued in ("json", "python")
        _, called, result, _ = branch.messages[1:]
        assert [call.name for call in called.calls] == ["weather"]
        assert called.content == ("I look." if reply.startswith("I look") else "")
        assert called.calls[0].id == run.calls[0].id
        assert json.loads(result.content) == {"temp": 3}
        assert reply in branch.text  # token for token as the model wrote it


async def test_streamed_events_are_those_of_any_call() -> None:
    async with kv.testing.replies([f"I look.\n{FENCED}", "Fine."]) as ctx:
        trunk = await agent().trunk(ctx)
        async with agent().stream(trunk, ONE_CALL) as events:
            seen = [event async for event in events]
        said = "".join(event.text for event in seen if isinstance(event, kv.events.TextDelta))
        assert said == "I look.Fine."
        started = [event.call for event in seen if isinstance(event, kv.events.CallStarted)]
        assert [(call.name, call.rescued) for call in started] == [("weather", "json")]


async def test_it_can_be_turned_off() -> None:
    async with kv.testing.replies([FENCED], rescue=False) as ctx:
        run = await agent().run(await agent().trunk(ctx), ONE_CALL)
        assert (run.text, run.calls) == (FENCED, ())


async def test_what_is_no_bool_is_refused() -> None:
    with pytest.raises(kv.InvalidInput, match="rescue"):
        async with kv.Context.open(kv.models.nano(), rescue="yes"):  # type: ignore[arg-type]
            pass


async def test_after_two_of_them_calls_are_steered() -> None:
    async with kv.testing.replies([FENCED, "One.", FENCED, "Two.", LISTED, "Three.", FENCED]) as ctx:
        trunk = await agent().trunk(ctx)
        for text in ("One.", "Two.", "Three."):
            async with await trunk.fork() as branch:
                run = await agent().run(branch, ONE_CALL)
                assert (run.text, run.rescued) == (text, 1)
        with pytest.raises(kv.StepFailed, match="does not allow"):  # it must be a list by now
            await agent().run(trunk, ONE_CALL)


async def test_each_message_is_a_list_of_calls_where_that_is_the_style() -> None:
    answer = '```json\n[{"name": "answer", "arguments": {"text": "It has \\"3\\" degrees."}}]'
    planning = agent(style="plan")
    async with kv.testing.replies([LISTED, answer, NO_CALL]) as ctx:
        trunk = await planning.trunk(ctx)
        assert "Answers the user in words" in trunk.text
        async with await trunk.fork() as branch:
            run = await planning.run(branch, ONE_CALL)
            assert [(call.name, call.rescued) for call in run.calls] == [("weather", None)]
            assert (run.text, run.rescued) == ('It has "3" degrees.', 0)
            assert branch.messages[-1].content == run.text
            assert branch.messages[-1].calls == ()
        with pytest.raises(kv.StepFailed, match="does not allow"):  # no message without a list
            await planning.run(trunk, ONE_CALL)


async def test_a_tool_that_is_called_as_answers_are_is_refused_in_that_style(open_desk: OpenDesk) -> None:
    @kv.tool(name="answer")
    def said(text: str) -> str:
        """Says it."""
        return text

    async with open_desk() as ctx:
        assert await kv.Agent(tools=[said]).trunk(ctx)
        with pytest.raises(kv.InvalidInput, match="another name"):
            await kv.Agent(tools=[said], style="plan").trunk(ctx)


@pytest.mark.parametrize("options", [{"style": "free form"}, {"call_threshold": 1.5}, {"call_threshold": True}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(kv.InvalidInput, match=next(iter(options))):
        kv.Agent(**options)


async def test_whether_a_tool_fits_is_asked_on_a_fork(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        trunk = await agent().trunk(ctx)
        await trunk.extend([{"role": "user", "content": ONE_CALL}])
        before = trunk.tokens
        probability = await call_probability(trunk)
        assert probability is not None
        assert 0 < probability < 1
        assert trunk.tokens == before
        assert ctx.branches == [trunk]
        step = await agent(call_threshold=0.0).step(trunk)
        assert step.call_probability == pytest.approx(probability)
        assert await call_probability(trunk) is None  # behind a message of the assistant's, or a result


async def test_where_no_branch_is_free_to_ask_on_the_model_decides(
    open_desk: OpenDesk, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_desk(capacity=4096) as ctx:
        trunk = await agent().trunk(ctx)
        await trunk.extend([{"role": "user", "content": ONE_CALL}])
        branches = []
        with suppress(kv.TooManyBranches):
            while True:
                branches.append(await trunk.fork())
        step = await agent(call_threshold=1.0).step(trunk)
        assert step.call_probability is None
        assert caplog.text.count("no branch is free") == 1
        await branches[0].close()
        async with await ctx.branch(branches[1].tokens) as again:
            assert len(again)


@pytest.mark.parametrize(
    "reply",
    [
        'weather(city="Oslo")',
        'I look.\n<function=weather>{"city": "Oslo"}</function>',
        'Well.\nweather(city="Oslo")',
    ],
)
async def test_where_nothing_may_be_called_all_of_it_is_text(reply: str) -> None:
    async with kv.testing.replies([reply, "Bye."]) as ctx:
        branch = await agent().trunk(ctx)
        run = await agent().run(branch, ONE_CALL, tool_choice="none")
        assert (run.output, run.calls, run.rounds) == (reply, (), 1)
        assert (await agent().run(branch, "Thank you!")).output == "Bye."


async def test_below_the_threshold_nothing_is_called(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        certain = agent(call_threshold=1.0)
        run = await certain.run(await certain.trunk(ctx), "What is the weather in Oslo?")
        assert run.calls == ()
        free = agent()
        assert (await free.run(await free.trunk(ctx), "What is the weather in Oslo?")).calls


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (FENCED, "weather"),
        (f"It is this: {CALL}", "weather"),
        ('{"name": "wind", "arguments": {}}', "wind, which is no tool"),
        ('{"name": "Bob", "age": 3}', ""),
        ("It is fine.", ""),
    ],
)
async def test_an_answer_that_looks_like_a_call_is_said_to(reply: str, named: str) -> None:
    async with kv.testing.replies([reply], rescue=False) as ctx:
        run = await agent().run(await agent().trunk(ctx), ONE_CALL)
        assert (run.text, run.calls) == (reply, ())
        assert [named in warning for warning in run.warnings] == [True] * bool(named)


async def test_a_message_that_a_tool_cannot_answer_stays_text_and_is_warned_of() -> None:
    shown = 'Use this: {"name": "weather", "arguments": {"town": "Oslo"}}'
    async with kv.testing.replies([shown]) as ctx:
        run = await agent().run(await agent().trunk(ctx), ONE_CALL)
        assert (run.text, len(run.warnings)) == (shown, 1)
