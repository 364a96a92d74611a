"""Mistakes that are easily made with agents: each is refused by name, or found in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import agentkv as kv
from tests.agentkv.agents.conftest import ONE_CALL, OpenDesk, as_tool, desk_agent


def with_optional_context(ctx: kv.RunContext[int] | None, a: int) -> None: ...


def several(a: int) -> Iterator[int]:
    yield a


class Shop:
    def price(self, product) -> int:  # type: ignore[no-untyped-def]
        return 0


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (several, {}, "must return one result"),
        (with_optional_context, {}, "make it the first parameter, and kv.RunContext its whole type"),
        (Shop.price, {}, r"kv.tool\(thing.method\)"),
        (several, {"timout": 5}, "kv.tool has no option 'timout'; its options are approve, .*timeout"),
    ],
)
def test_functions_and_options_that_make_no_tool(function: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(kv.InvalidInput, match=said):
        kv.tool(**options)(function)


@pytest.mark.parametrize("hook", ["before_round", "after_call"])
def test_hooks_must_be_functions(hook: str) -> None:
    with pytest.raises(kv.InvalidInput, match=f"{hook} is int 3, but it must be a function"):
        desk_agent(**{hook: 3})


@pytest.mark.anyio
async def test_a_turn_needs_a_question(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        agent = desk_agent("stock")
        branch = await agent.trunk(ctx)
        for turn in (agent.run(branch), agent.step(branch)):
            with pytest.raises(kv.InvalidInput, match="a message of the system, which asks nothing; pass a prompt"):
                await turn
        await branch.extend([{"role": "user", "content": ONE_CALL}])
        assert (await agent.run(branch)).rounds == 2


@pytest.mark.anyio
async def test_a_decision_is_yes_or_no(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        agent = desk_agent(tools=[as_tool("stock", approve=True)])
        branch = await agent.trunk(ctx)
        length = len(branch)
        with pytest.raises(kv.InvalidInput, match="approve is bool True, but it must be a function"):
            await agent.run(branch, ONE_CALL, approve=True)  # type: ignore[call-overload]
        with pytest.raises(
            kv.InvalidInput, match="approve returned str 'yes', but it must return True, False, or None"
        ):
            await agent.run(branch, ONE_CALL, approve=lambda _: "yes")  # type: ignore
        assert len(branch) == length


@pytest.mark.anyio
async def test_why_a_tool_failed_is_in_the_log(open_desk: OpenDesk, caplog: pytest.LogCaptureFixture) -> None:
    def stock(product: str) -> None:
        raise KeyError(product)

    caplog.set_level(logging.WARNING, "agentkv")
    async with open_desk() as ctx:
        agent = desk_agent(tools=[as_tool("stock", stock)])
        await agent.run(await agent.trunk(ctx), ONE_CALL)
    (record,) = caplog.records
    assert record.getMessage() == "event='tool failed' tool='stock' attempts=1"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)


@pytest.mark.anyio
async def test_tools_that_a_branch_does_not_tell_of_are_in_the_log(
    open_desk: OpenDesk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "agentkv")
    async with open_desk() as ctx:
        both = desk_agent("stock", "weather")
        await both.run(await both.trunk(ctx), "Who are you?")
        assert not caplog.records
        await both.run(await desk_agent("stock").trunk(ctx), "Who are you?")
    assert "untold=['weather']" in caplog.text


@pytest.mark.anyio
async def test_a_stream_that_is_never_entered_leaves_nothing_open(
    open_desk: OpenDesk, recwarn: pytest.WarningsRecorder
) -> None:
    async with open_desk() as ctx:
        agent = desk_agent("stock")
        stream = agent.stream(await agent.trunk(ctx), ONE_CALL)
        with pytest.raises(kv.AgentKVError, match="async with"):
            await anext(stream)
        del stream
    assert [w for w in recwarn if issubclass(w.category, ResourceWarning)] == []
