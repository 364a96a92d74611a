"""Events of a turn: in order, early calls first, approvals answered, streams left at any moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
import pytest
from agentkv_runtime.formats.parsed import Delta

import agentkv as kv
from agentkv._chat.reply import ReplyParser
from tests.waiting import PATIENCE, until

from .conftest import NO_CALL, ONE_CALL, TWO_CALLS, OpenDesk, as_tool, desk_agent

pytestmark = pytest.mark.anyio


async def events_of(stream: kv.AgentStream[Any]) -> list[kv.events.Event]:
    async with stream as events:
        return [event async for event in events]


def kinds(events: list[kv.events.Event]) -> list[str]:
    """Their names; equal neighbours once."""
    names = [type(event).__name__ for event in events]
    return [name for i, name in enumerate(names) if names[i - 1 : i] != [name]]


async def test_events_tell_what_run_returns(open_desk: OpenDesk) -> None:
    agent = desk_agent("stock")
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        run = await agent.run(await trunk.fork(), ONE_CALL)
        stream = agent.stream(await trunk.fork(), ONE_CALL)
        events = await events_of(stream)
        assert kinds(events) == ["CallStarted", "CallFinished", "TextDelta", "Finished"]
        assert "".join(e.text for e in events if isinstance(e, kv.events.TextDelta)) == run.text
        assert isinstance(events[-1], kv.events.Finished)
        assert events[-1].run is stream.run
        assert (stream.run.text, stream.run.messages, stream.run.usage) == (run.text, run.messages, run.usage)


async def test_a_reader_approves_and_denies(open_desk: OpenDesk) -> None:
    agent = desk_agent(tools=[as_tool("weather", approve=True)])
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        stream = agent.stream(await trunk.fork(), TWO_CALLS)
        async with stream as events:
            async for event in events:
                if isinstance(event, kv.events.ApprovalAsked) and event.call.arguments["city"] == "Tolvik":
                    event.approve()  # the other one is passed on, which denies it
        assert [call.status for call in stream.run.calls] == ["done", "denied"]


async def test_an_answer_may_come_later_and_from_elsewhere(open_desk: OpenDesk) -> None:
    agent = desk_agent(tools=[as_tool("stock", approve=True)])
    async with open_desk() as ctx:
        stream = agent.stream(await agent.trunk(ctx), ONE_CALL)

        async def decide(event: kv.events.ApprovalAsked) -> None:
            await anyio.wait_all_tasks_blocked()  # the reader waits for what comes next
            event.approve()

        async with anyio.create_task_group() as people, stream as events:
            async for event in events:
                if isinstance(event, kv.events.ApprovalAsked):
                    event.later()
                    people.start_soon(decide, event)
        assert [call.status for call in stream.run.calls] == ["done"]


async def test_leaving_a_stream_early_undoes_the_turn(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather")
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        total = len(await events_of(agent.stream(await branch.fork(), TWO_CALLS)))
        for count in range(0, total - 1, 5):
            stream = agent.stream(branch, TWO_CALLS)
            async with stream as events:
                for _ in range(count):
                    await events.__anext__()
                with pytest.raises(kv.AgentKVError, match="still runs"):
                    _ = stream.run
            assert branch.tokens == before
            with pytest.raises(kv.OutputIncomplete):
                _ = stream.run.output


@pytest.mark.parametrize("ended", ["left", "hook"])
async def test_results_of_calls_stay_where_what_was_done_is_kept(open_desk: OpenDesk, ended: str) -> None:
    never = anyio.Event()

    async def weather(city: str) -> dict[str, Any]:
        if city == "Brasno":
            await never.wait()
        return {"temp": 1, "sky": "rainy"}

    def hook(ctx: kv.RunContext[Any], record: kv.CallRecord) -> None:
        if ended == "hook":
            raise ZeroDivisionError

    agent = desk_agent(tools=[as_tool("weather", weather, early=False)], after_call=hook)
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        if ended == "hook":
            with pytest.raises(ZeroDivisionError):
                await agent.run(branch, TWO_CALLS, keep_partial=True)
        else:
            async with agent.stream(branch, TWO_CALLS, keep_partial=True) as events:
                async for event in events:
                    if isinstance(event, kv.events.CallFinished):
                        break
            assert events.run.messages == tuple(branch.messages[1:])
        user, said, *results = branch.messages[1:]
        assert [user.role, said.role] == ["user", "assistant"]
        assert [result.call_id for result in results] == [call.id for call in said.calls]
        if len(results) == 2:
            assert results[0].content == '{"temp": 1, "sky": "rainy"}'
            assert "error" in results[1].content


async def test_a_turn_is_done_once_its_reader_knows_however_far_ahead_it_was() -> None:
    async with kv.testing.replies(lambda _: "Well.", capacity=512, threads=1) as ctx:
        branch = await kv.Agent("S").trunk(ctx)
        before, forwards = branch.tokens, ctx.stats.forwards
        stream = kv.Agent("S").stream(branch, "Q")
        async with stream as events:
            await events.__anext__()
            await until(lambda: any(isinstance(event, kv.events.Finished) for event in stream._pending))
            assert ctx.stats.forwards > forwards
            with pytest.raises(kv.BranchBusy):
                await branch.extend("more")
        assert (branch.tokens, branch.messages[-1].role) == (before, "system")
        assert stream.run.messages[-1].content == "Well."
        stream = kv.Agent("S").stream(branch, "Q")
        async with stream as events:
            async for event in events:
                if isinstance(event, kv.events.Finished):
                    assert stream.run is event.run
                    await branch.extend([{"role": "user", "content": "The branch is free."}])
                    break
        assert [message.role for message in branch.messages] == ["system", "user", "assistant", "user"]
        assert stream.run.output == "Well."


async def told(stream: kv.AgentStream[Any]) -> AsyncIterator[kv.events.Event]:
    async with stream as events:
        async for event in events:
            yield event


@pytest.mark.parametrize("keep", [False, True])
async def test_a_generator_that_is_closed_ends_its_turn_and_not_its_caller(keep: bool) -> None:
    """As a web framework closes one whose client has gone."""
    async with kv.testing.replies(lambda _: "It is three.", threads=1) as ctx:
        branch = await kv.Agent("S").trunk(ctx)
        before = branch.tokens
        stream = kv.Agent("S").stream(branch, "Q", keep_partial=keep)
        events = told(stream)
        heard = [await anext(events), await anext(events)]
        await events.aclose()
        await anyio.lowlevel.checkpoint()
        await until(lambda: branch._handle.state.lease is None)
        said = "".join(event.text for event in heard if isinstance(event, kv.events.TextDelta))
        assert (branch.messages[-1].content == said) if keep else (branch.tokens == before)
        assert stream.run.text == said
        await branch.extend([{"role": "user", "content": "The task goes on."}])


@pytest.mark.parametrize("keep", [False, True])
async def test_a_reader_may_stop_a_turn_that_is_done(keep: bool) -> None:
    async with kv.testing.replies(["It is three."], threads=1) as ctx:
        stream = kv.Agent("S").stream(await kv.Agent("S").trunk(ctx), "Q", keep_partial=keep)
        heard = list[kv.events.Event]()
        async with stream as events:
            while not stream._control.ended:
                if keep or not heard:
                    heard.append(await anext(events))
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(PATIENCE):
                await events.stop()
            heard += [event async for event in events]
        assert "".join(event.text for event in heard if isinstance(event, kv.events.TextDelta)) == "It is three."
        assert heard[-1] == kv.events.Finished(stream.run)


@pytest.mark.parametrize("unread", ["Finished", "text", "more than it may be ahead"])
async def test_a_context_that_is_left_waits_for_no_reader(unread: str) -> None:
    """Whose turn is done, or waits for it."""
    said = "It is three." if unread != "more than it may be ahead" else "one two three " * 60
    async with kv.testing.replies([said], capacity=2048, threads=1) as ctx:
        branch = await kv.Agent("S", max_tokens=400).trunk(ctx)
        stream = kv.Agent("S", max_tokens=400).stream(branch, "Q", keep_partial=unread == "text")
        await stream.__aenter__()
        await anext(stream)
        await until(lambda: stream._control.ended or unread != "Finished")
        await anyio.wait_all_tasks_blocked()
    with anyio.fail_after(PATIENCE):
        await stream.__aexit__(None, None, None)
    assert said.startswith(stream.run.text)
    assert stream.run.text
    if unread == "Finished":
        assert stream.run.text == said  # it was done


async def test_an_error_keeps_its_cause() -> None:
    @kv.tool(on_error="raise")
    def weather(city: str) -> str:
        raise ValueError("the station is down")

    async with kv.testing.replies([kv.testing.call("weather", city="Oslo")], threads=1) as ctx:
        agent = kv.Agent("S", tools=[weather])
        with pytest.raises(kv.ToolFailed) as failure:
            await events_of(agent.stream(await agent.trunk(ctx), "Q"))
        assert "the station is down" in str(failure.value.__cause__)


@pytest.mark.parametrize(
    "text", ['Like {"type": "city"}, it is.', "w < b <x> weather then", "So:\n```json\n{", "a {", "日本 🌧 {"]
)
async def test_what_nobody_was_told_as_it_might_have_been_a_call_does_not_stay(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A reader that leaves while it waits, after any number of tokens."""
    agent = desk_agent("weather")
    feed, left = ReplyParser.feed_ids, list[anyio.CancelScope]()

    def feed_ids(parser: ReplyParser, ids: Iterable[int]) -> list[Delta]:
        if left and len(left) > 1:
            left.pop()
        elif left:
            left[0].cancel()
        return feed(parser, ids)

    monkeypatch.setattr(ReplyParser, "feed_ids", feed_ids)
    async with kv.testing.replies(lambda _: text, capacity=2048, threads=1) as ctx:
        trunk = await agent.trunk(ctx)
        said, count = "", 0
        while said.strip() != text:
            branch, heard, count = await trunk.fork(), "", count + 1
            with anyio.CancelScope() as scope:
                left[:] = [scope] * count
                async with agent.stream(branch, "Q", keep_partial=True) as events:
                    async for event in events:
                        heard += event.text if isinstance(event, kv.events.TextDelta) else ""
            left.clear()
            said = "".join(message.content for message in branch.messages if message.role == "assistant")
            assert said.strip() == heard.strip()
            await branch.close()
        assert count > 3


async def test_what_ends_a_turn_is_raised_to_the_reader(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather", max_rounds=1)
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        seen: list[kv.events.Event] = []
        with pytest.raises(kv.LimitReached) as caught:  # noqa: PT012 - with what came before
            async with agent.stream(branch, TWO_CALLS) as events:
                async for event in events:
                    seen.append(event)
        assert isinstance(seen[-1], kv.events.RolledBack)
        assert seen[-1].length == len(branch)
        assert caught.value.run is not None
        assert len(caught.value.run.calls) == 2


async def test_an_error_of_the_reader_is_its_own(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather")
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - in the block
            async with agent.stream(branch, TWO_CALLS) as events:
                async for _ in events:
                    raise ZeroDivisionError
        assert branch.tokens == before
        await agent.run(branch, NO_CALL)


async def test_a_stream_that_has_not_begun_says_so(open_desk: OpenDesk) -> None:
    agent = desk_agent("stock")
    async with open_desk() as ctx:
        stream = agent.stream(await agent.trunk(ctx), ONE_CALL)
        with pytest.raises(kv.AgentKVError, match="has not begun"):
            _ = stream.run
        with pytest.raises(kv.InvalidInput, match="must be a Context"):
            await agent.trunk(kv.models.nano())  # type: ignore[arg-type]


async def test_a_stream_that_is_left_at_once_has_done_nothing(open_desk: OpenDesk) -> None:
    agent = desk_agent("stock")
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        async with agent.stream(branch, ONE_CALL) as stream:
            pass
        run = stream.run
        assert (run.text, run.calls, run.messages, run.rounds) == ("", (), (), 0)
        assert run.usage == kv.Usage(len(branch), 0)


async def test_a_stream_is_for_one_turn_and_one_reader(open_desk: OpenDesk) -> None:
    agent = desk_agent(tools=[as_tool("stock", approve=True)])
    async with open_desk() as ctx:
        stream = agent.stream(await agent.trunk(ctx), ONE_CALL)
        with pytest.raises(kv.AgentKVError, match="has not begun"):
            await stream.__anext__()
        async with stream as events:
            asked = await events.__anext__()
            assert isinstance(asked, kv.events.ApprovalAsked)
            asked.later()
            async with anyio.create_task_group() as group:
                group.start_soon(events.__anext__)
                await anyio.lowlevel.checkpoint()
                asked.approve()
        with pytest.raises(kv.AgentKVError, match="another turn"):
            await stream.__aenter__()


@pytest.mark.parametrize("names", [(), ("weather",)])
async def test_events_of_text_come_token_by_token(open_desk: OpenDesk, names: tuple[str, ...]) -> None:
    agent = desk_agent(*names)
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        run = await agent.run(await trunk.fork(), NO_CALL)
        events = await events_of(agent.stream(trunk, NO_CALL))
        texts = [event.text for event in events if isinstance(event, kv.events.TextDelta)]
        assert "".join(texts) == run.text
        assert len(texts) > 3
        assert kv.events.TextDelta is kv.formats.TextDelta
