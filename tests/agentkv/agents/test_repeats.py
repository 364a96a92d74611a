"""Calls that a turn makes again: told, refused, and then the end of it."""

from __future__ import annotations

from typing import Any

import pytest

import agentkv as kv
from agentkv.agents.answer_format import ANSWER_NOW, VALUE_NOW
from agentkv.agents.repeats import Repeats
from agentkv.testing import call

from .conftest import ONE_CALL, as_tool, desk_agent

pytestmark = pytest.mark.anyio

OSLO, ROME = (call("weather", city=city) for city in ("Oslo", "Rome"))
STOCK = call("stock", product="Lumora")
DONE, AGAIN = "done", "repeated"


def freely(context: kv.RunContext[Any]) -> str:
    """A choice of the caller's own: no message is held to an answer."""
    return "auto"


@pytest.mark.parametrize(
    ("messages", "statuses"),
    [
        ([OSLO, OSLO], [DONE, AGAIN]),
        ([OSLO, OSLO, OSLO], [DONE, AGAIN, AGAIN]),
        ([OSLO, ROME, OSLO], [DONE, DONE, DONE]),  # something else was called since
        ([OSLO, STOCK, OSLO], [DONE, DONE, DONE]),
        ([[OSLO, ROME], [OSLO, ROME]], [DONE, DONE, AGAIN, AGAIN]),
        ([[OSLO, ROME], OSLO, ROME], [DONE, DONE, AGAIN, AGAIN]),
        ([[OSLO, OSLO, OSLO]], [DONE]),  # the message ends before the second
        ([[OSLO, ROME, OSLO, STOCK]], [DONE, DONE]),
        ([[OSLO, ROME] * 8, STOCK], [DONE, DONE, DONE]),
        ([["Well. ", OSLO, OSLO], ROME], [DONE, DONE]),
        ([OSLO, [OSLO, ROME], OSLO], [DONE, AGAIN, DONE, DONE]),
        ([OSLO, OSLO, OSLO, ROME, ROME, ROME], [DONE, AGAIN, AGAIN, DONE, AGAIN, AGAIN]),
    ],
)
async def test_what_is_called_again(messages: list[Any], statuses: list[str]) -> None:
    async with kv.testing.replies([*messages, "So it is."]) as ctx:
        agent = desk_agent("weather", "stock", tool_choice=freely)
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert [call.status for call in run.calls] == statuses
        assert [call.attempts for call in run.calls] == [int(status == DONE) for status in statuses]
        assert run.text == "So it is."


@pytest.mark.parametrize(
    ("replies", "options"),
    [
        ([OSLO] * 3, {}),
        ([OSLO, ROME], {"max_rounds": 3}),
        ([OSLO, [OSLO, OSLO, ROME]], {"max_repeats": 1}),  # a message that is cut is taken back once
    ],
)
async def test_a_turn_that_would_not_end_is_asked_for_its_answer(replies: list[Any], options: dict[str, Any]) -> None:
    agent = desk_agent("weather", "stock", **options)
    async with kv.testing.replies([*replies, "It is fine."]) as ctx:
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, ONE_CALL)
        assert (run.output, len(run.calls)) == ("It is fine.", len(replies))
        useful = sum(record.status == DONE for record in run.calls)
        roles = [message.role for message in branch.messages[1:]]  # what only repeated is taken back
        assert roles == ["user", *["assistant", "tool"] * useful, "user", "assistant"]
        assert branch.messages[-2].content == ANSWER_NOW
        said = [message.end - message.start for message in branch.messages if message.role == "assistant"]
        ends = len(branch) - run.usage.prompt_tokens - sum(said)
        assert 0 <= ends <= len(said)
        assert run.messages == tuple(branch.messages[1:])


@pytest.mark.parametrize(
    ("messages", "warned"),
    [
        ([OSLO, ROME, OSLO, ROME], 1),
        ([OSLO, ROME, OSLO, ROME, OSLO, ROME], 1),
        ([OSLO, ROME, STOCK, OSLO, ROME, STOCK], 1),
        ([[OSLO, STOCK], ROME, [STOCK, OSLO], ROME], 1),
        ([OSLO, ROME, OSLO, STOCK, OSLO, ROME, OSLO, STOCK], 1),
        ([OSLO, ROME, OSLO], 0),
        ([OSLO, ROME, OSLO, STOCK], 0),
        ([OSLO, OSLO, OSLO, OSLO], 0),  # this ends the turn, or is refused
    ],
)
async def test_calls_that_come_by_turns_are_warned_of(messages: list[Any], warned: int) -> None:
    async with kv.testing.replies([*messages, "So it is."]) as ctx:
        agent = desk_agent("weather", "stock", tool_choice=freely, max_repeats=5, max_rounds=9)
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert ["come round" in warning for warning in run.warnings] == [True] * warned


async def test_a_value_is_not_asked_for_in_words() -> None:
    agent = desk_agent("weather", output=int)
    async with kv.testing.replies([OSLO] * 3 + ["7"]) as ctx:
        branch = await agent.trunk(ctx)
        assert (await agent.run(branch, ONE_CALL)).output == 7
        assert branch.messages[-2].content == VALUE_NOW


async def test_it_is_told_then_refused_then_the_turn_ends() -> None:
    agent = desk_agent("weather", tool_choice=freely)
    async with kv.testing.replies([OSLO] * 4) as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        with pytest.raises(kv.RepeatedCall, match=r"weather in 4 messages.*4 rounds, .*weather 4x") as caught:
            await agent.run(branch, ONE_CALL)
        assert (caught.value.limit, branch.tokens) == ("max_repeats", before)
        assert isinstance(caught.value, kv.LimitReached)
        assert caught.value.run is not None
        first, told, *refused = caught.value.run.calls
        assert first.content in told.content
        assert all(record.content.startswith("refused") for record in refused)


@pytest.mark.parametrize("keep", [False, True])
async def test_what_was_done_is_kept_where_it_is_asked_for(keep: bool) -> None:
    agent = desk_agent("weather", tool_choice=freely)
    async with kv.testing.replies([OSLO] * 4) as ctx:
        branch = await agent.trunk(ctx)
        with pytest.raises(kv.RepeatedCall):
            await agent.run(branch, ONE_CALL, keep_partial=keep)
        roles = [message.role for message in branch.messages[1:]]
        assert roles == (["user"] + ["assistant", "tool"] * 4 if keep else [])


@pytest.mark.parametrize("most", [0, 1])
async def test_how_often_is_an_option(most: int) -> None:
    agent = desk_agent("weather", max_repeats=most, tool_choice=freely)
    async with kv.testing.replies([OSLO] * (most + 2)) as ctx:
        with pytest.raises(kv.RepeatedCall):
            await agent.run(await agent.trunk(ctx), ONE_CALL)


async def test_a_tool_to_be_polled_is_exempt() -> None:
    agent = desk_agent(tools=[as_tool("weather", repeatable=True)])
    async with kv.testing.replies([OSLO] * 5 + ["At last."]) as ctx:
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert [record.status for record in run.calls] == [DONE] * 5


@pytest.mark.parametrize(
    ("fault", "status", "advice"),
    [
        (kv.Retry("again"), "retry", "repeatable=True"),
        (OSError("no line"), "failed", "weather 4x.*; the last one failed: OSError: no line"),
    ],
)
async def test_a_call_that_failed_runs_again_and_is_counted(fault: Exception, status: str, advice: str) -> None:
    def weather(city: str) -> Any:
        raise fault

    agent = desk_agent(tools=[as_tool("weather", weather)], tool_choice=freely)
    async with kv.testing.replies([OSLO] * 4) as ctx:
        with pytest.raises(kv.RepeatedCall, match=advice) as caught:
            await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert caught.value.run is not None
        assert [record.status for record in caught.value.run.calls] == [status] * 4


async def test_a_turn_that_repeats_itself_is_held_to_its_final_tool() -> None:
    agent = desk_agent("weather", "stock", final_tool="stock")
    async with kv.testing.replies([OSLO, OSLO, STOCK]) as ctx:
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert run.output == run.calls[-1].result
    async with kv.testing.replies([OSLO, OSLO, OSLO]) as ctx:
        with pytest.raises(kv.StepFailed):  # the grammar does not allow it
            await agent.run(await agent.trunk(ctx), ONE_CALL)


def test_the_same_is_the_same_however_it_is_written() -> None:
    repeats = Repeats()
    assert repeats.end_message() == ("", 0)
    assert repeats.why_not(kv.CallRequest("c0", "f", {"a": 1, "b": 2})) is None


@pytest.mark.parametrize("name", ["hermes", "mistral", "granite", "deepseek-v3", "pythonic", "qwen-xml"])
async def test_a_message_ends_before_a_call_that_it_has_made(name: str) -> None:
    """In formats with markers around all calls, too, and told or not: tokens, messages and results agree."""
    agent = desk_agent("weather", "stock")
    said = [OSLO, ROME, OSLO, ROME]
    branches = []
    for heard in (False, True):
        async with kv.testing.replies([said, "Cold."], call_format=name) as ctx:
            branch = await agent.trunk(ctx)
            if heard:
                async with agent.stream(branch, ONE_CALL) as events:
                    async for _ in events:
                        pass
                run = events.run
            else:
                run = await agent.run(branch, ONE_CALL)
            assert [record.status for record in run.calls] == [DONE, DONE]
            assert [m.role for m in branch.messages[1:]] == ["user", "assistant", "tool", "tool", "assistant"]
            made = branch.messages[2].calls
            assert [(call.arguments, call.error) for call in made] == [
                ({"city": "Oslo"}, None),
                ({"city": "Rome"}, None),
            ]
            assert [m.call_id for m in branch.messages[3:5]] == [call.id for call in made]
            branches.append(branch.tokens)
    assert branches[0] == branches[1]


async def test_a_tool_to_be_polled_may_be_called_twice_at_once() -> None:
    agent = desk_agent(tools=[as_tool("weather", repeatable=True)])
    async with kv.testing.replies([[OSLO, OSLO], "Cold."]) as ctx:
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert [record.status for record in run.calls] == [DONE, DONE]


@pytest.mark.parametrize(
    ("messages", "answers", "echoes"),
    [
        ([OSLO, OSLO], ["No, do not make it again; go on with that"], True),
        ([OSLO, OSLO], ["<toot_response>This call was made before</toot_response>"], True),
        ([OSLO], ["Go on with that."], False),  # nobody was told so
        ([OSLO, OSLO], ["It is sunny in Oslo."], False),
    ],
)
async def test_a_note_that_is_said_again_is_no_answer(messages: list[Any], answers: list[str], echoes: bool) -> None:
    replies = [*messages, *answers, *(["So it is."] if echoes else [])]
    async with kv.testing.replies(replies) as ctx:
        agent = desk_agent("weather", "stock", max_repeats=4)
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, ONE_CALL)
        assert run.text == ("So it is." if echoes else answers[-1])
        asked = [message.content for message in branch.messages if message.role == "user"]
        assert asked == [ONE_CALL, *([ANSWER_NOW] if echoes else [])]
        assert any(answers[-1] in message.content for message in branch.messages) != echoes


async def test_one_that_says_it_twice_is_warned_of() -> None:
    echo = "Do not make it again; go on with that"
    async with kv.testing.replies([OSLO, OSLO, echo, echo]) as ctx:
        agent = desk_agent("weather", max_repeats=4)
        run = await agent.run(await agent.trunk(ctx), ONE_CALL)
        assert run.text == echo
        assert "repeats what stands in place" in run.warnings[0]
