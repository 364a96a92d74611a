"""One call of a tool: checks, approval, attempts, threads, results; cancelled and failing in every way."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

import agentkv as kv
from agentkv.agents.calling import Call, Desk
from agentkv.agents.threads import ToolThreads
from tests.agentkv.conftest import OpenContext

pytestmark = pytest.mark.anyio


class Table:
    """A desk of tools over a real Context, and what was told of their calls."""

    def __init__(self, ctx: kv.Context, branch: kv.Branch, tools: list[kv.Tool[Any, ..., Any]]) -> None:
        self.events: list[Any] = []
        self.answer: Callable[[kv.events.ApprovalAsked], None] = lambda asked: asked.deny("nobody is here")
        self.threads = ToolThreads(4)
        context = kv.RunContext("the deps", branch, None, None, 1)
        self.desk = Desk(
            {tool.name: tool for tool in tools}, context, self.threads, ctx.tokenizer, self._emit, self._ask
        )

    async def _emit(self, event: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.events.append(event)

    async def _ask(self, asked: kv.events.ApprovalAsked) -> str | None:
        self.events.append(asked)
        self.answer(asked)
        return await asked.answer()

    def call(self, name: str, error: str | None = None, **arguments: Any) -> Call:
        return Call(self.desk, kv.CallRequest("c00000000", name, arguments, error))

    async def run(self, name: str, error: str | None = None, **arguments: Any) -> kv.CallRecord:
        call = self.call(name, error, **arguments)
        await call.run()
        assert call.record is not None
        assert self.events[-1] == kv.events.CallFinished(call.record)
        return call.record

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


@pytest.fixture
def table(open_context: OpenContext) -> Callable[..., Any]:
    @asynccontextmanager
    async def table(*tools: kv.Tool[Any, ..., Any]) -> AsyncIterator[Table]:
        async with open_context() as ctx:
            yield Table(ctx, await ctx.branch("The"), list(tools))

    return table


async def until_idle(threads: ToolThreads) -> None:
    with anyio.fail_after(20):
        while threads.busy:  # noqa: ASYNC110 - only threads end it
            await anyio.sleep(0.001)


class Place(BaseModel):
    city: str


@kv.tool
async def weather(city: str, days: int = 1) -> dict[str, Any]:
    """The weather."""
    return {"city": city, "temp": days}


async def test_a_call_is_checked_run_and_told(table: Any) -> None:
    async with table(weather) as desk:
        record = await desk.run("weather", city="Tromsø", days="3")
        assert (record.result, record.status, record.error) == ({"city": "Tromsø", "temp": 3}, "done", None)
        assert record.content == '{"city": "Tromsø", "temp": 3}'
        assert (record.attempts, record.ran, record.arguments["days"]) == (1, True, "3")
        assert desk.kinds() == ["CallStarted", "CallFinished"]


@pytest.mark.parametrize(
    ("name", "error", "arguments", "said"),
    [
        ("nope", None, {}, "unknown tool nope; the tools are weather"),
        ("weather", None, {}, "bad arguments: city: Field required"),
        ("weather", None, {"city": "x", "days": []}, "bad arguments: days"),
        ("weather", "it was cut short", {"city": "x"}, "it was cut short"),
        ("", "no JSON", {}, "no JSON"),
    ],
)
async def test_an_invalid_call_never_runs(table: Any, name: str, error: str | None, arguments: Any, said: str) -> None:
    async with table(weather) as desk:
        record = await desk.run(name, error, **arguments)
        assert said in record.error
        assert (record.status, record.ran, record.result) == ("invalid", False, None)
        assert said in record.content
        assert desk.kinds() == ["CallFinished"]


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("as it is", "as it is"),
        ("lone \ud800", "lone ?"),
        (None, "null"),
        (3, "3"),
        ({"a": [1, None, "é"]}, '{"a": [1, null, "é"]}'),
        (Place(city="Oslo"), '{"city": "Oslo"}'),
        ([Place(city="x")], '[{"city": "x"}]'),
        ({1, 2}, "[1, 2]"),
    ],
    ids=repr,
)
async def test_results_are_text_or_json(table: Any, result: Any, content: str) -> None:
    @kv.tool
    async def give() -> Any:
        return result

    async with table(give) as desk:
        record = await desk.run("give")
        assert (record.content, record.status) == (content, "done")


async def test_a_result_without_json_is_an_error_that_the_model_reads(table: Any) -> None:
    @kv.tool
    async def give() -> object:
        return object()

    async with table(give) as desk:
        record = await desk.run("give")
        assert (record.status, record.ran) == ("failed", True)
        assert "which has no JSON form" in record.error


async def test_plain_functions_run_in_threads(table: Any) -> None:
    @kv.tool
    def where() -> str:
        return threading.current_thread().name

    @kv.tool
    def later() -> Any:
        async def result() -> str:
            return threading.current_thread().name

        return result()

    async with table(where, later) as desk:
        assert (await desk.run("where")).result != threading.current_thread().name
        assert (await desk.run("later")).result == threading.current_thread().name
        await until_idle(desk.threads)


async def test_the_run_context_comes_first(table: Any) -> None:
    @kv.tool(retries=1, backoff=0)
    def look(ctx: kv.RunContext[str], city: str) -> list[Any]:
        if ctx.attempt == 1:
            raise RuntimeError("again")
        assert ctx.call is not None
        return [ctx.deps, ctx.attempt, ctx.call.name, ctx.branch.text, city]

    async with table(look) as desk:
        assert (await desk.run("look", city="Oslo")).result == ["the deps", 2, "look", "The", "Oslo"]


async def test_an_exception_is_read_by_the_model_after_its_retries(table: Any) -> None:
    seen = []

    @kv.tool(retries=2, backoff=0.001)
    async def fail(x: int) -> None:
        seen.append(x)
        raise ValueError("out of luck")

    async with table(fail) as desk:
        record = await desk.run("fail", x=1)
        assert seen == [1, 1, 1]
        assert (record.error, record.status, record.attempts) == ("ValueError: out of luck", "failed", 3)
        assert record.content == '{"error": "ValueError: out of luck"}'
        assert desk.kinds() == ["CallStarted", "Retried", "Retried", "CallFinished"]
        assert [event.attempt for event in desk.events[1:3]] == [1, 2]


async def test_a_tool_may_end_the_turn(table: Any) -> None:
    @kv.tool(on_error="raise", retries=1, backoff=0)
    def fail() -> None:
        raise KeyError("gone")

    async with table(fail) as desk:
        call = desk.call("fail")
        with pytest.raises(kv.ToolFailed, match="tool fail failed: KeyError") as caught:
            await call.run()
        assert isinstance(caught.value.__cause__, KeyError)
        assert (call.record.status, call.record.attempts) == ("failed", 2)


async def test_retry_goes_to_the_model_and_not_to_the_function(table: Any) -> None:
    @kv.tool(retries=5, on_error="raise")
    async def find(city: str) -> None:
        raise kv.Retry("unknown city")

    async with table(find) as desk:
        record = await desk.run("find", city="Olso")
        assert (record.status, record.error, record.attempts) == ("retry", "unknown city", 1)
        assert record.content == '{"error": "unknown city"}'
        assert desk.events[1] == kv.events.Retried("find", "unknown city", 1)


async def test_a_slow_attempt_is_cancelled_and_counts_as_an_exception(table: Any) -> None:
    cancelled = []

    @kv.tool(timeout=0.02, retries=1, backoff=0)
    async def slow() -> None:
        try:
            await anyio.sleep(60)
        finally:
            cancelled.append(1)

    async with table(slow) as desk:
        record = await desk.run("slow")
        assert (record.status, record.attempts, cancelled) == ("timeout", 2, [1, 1])
        assert record.error == "it took longer than 0.02 s"


async def test_a_timeout_of_the_tools_own_is_an_exception_like_others(table: Any) -> None:
    @kv.tool(timeout=5)
    async def slow() -> None:
        raise TimeoutError("upstream")

    async with table(slow) as desk:
        assert (await desk.run("slow")).status == "failed"


async def test_a_thread_that_timed_out_keeps_its_slot_until_it_returns(table: Any) -> None:
    release = threading.Event()

    @kv.tool(timeout=0.02)
    def stuck() -> None:
        release.wait(20)

    @kv.tool
    def quick() -> int:
        return 1

    async with table(stuck, quick) as desk:
        try:
            for _ in range(4):
                assert (await desk.run("stuck")).status == "timeout"
            assert desk.threads.busy == 4
            with anyio.move_on_after(0.05) as scope:  # there is no slot left
                await desk.run("quick")
            assert scope.cancelled_caught
            assert desk.threads.busy == 4
        finally:
            release.set()
        await until_idle(desk.threads)
        assert (await desk.run("quick")).result == 1
        await until_idle(desk.threads)


async def test_approval(table: Any) -> None:
    sent = []

    @kv.tool(approve=True)
    async def send(to: str) -> str:
        sent.append(to)
        return "sent"

    async with table(send) as desk:
        assert not desk.call("send", to="Eva").begins_early
        record = await desk.run("send", to="Eva")
        assert (record.status, record.error, record.ran, sent) == ("denied", "denied: nobody is here", False, [])
        desk.answer = lambda asked: asked.approve()
        assert (await desk.run("send", to="Eva")).result == "sent"
        assert desk.kinds() == ["ApprovalAsked", "CallFinished", "ApprovalAsked", "CallStarted", "CallFinished"]
        desk.events.clear()
        assert (await desk.run("send", to=3)).status == "invalid"  # nobody is asked about what cannot run
        assert desk.kinds() == ["CallFinished"]


async def test_the_first_answer_counts() -> None:
    asked = kv.events.ApprovalAsked(kv.CallRequest("c", "send", {}))
    asked.approve()
    asked.deny("too late")
    assert await asked.answer() is None
    asked = kv.events.ApprovalAsked(kv.CallRequest("c", "send", {}))
    asked.later()
    asked.passed_on()
    asked.deny("no")
    asked.approve()
    assert await asked.answer() == "no"


async def test_long_results_are_cut_with_a_mark_or_refused(table: Any) -> None:
    @kv.tool(max_result_tokens=40)
    async def cut(n: int) -> str:
        return "word äö " * n

    @kv.tool(max_result_tokens=40, on_long="refuse")
    async def refuse(n: int) -> str:
        return "word " * n

    @kv.tool(max_result_tokens=2)
    async def tiny() -> str:
        return "word äö " * 9

    async with table(cut, refuse, tiny) as desk:
        tokens = desk.desk.tokenizer
        for n in (1, 20, 3000):
            record = await desk.run("cut", n=n)
            assert record.result == "word äö " * n
            assert len(tokens.encode(record.content, parse_special=False)) <= 40
            assert ("[cut: " in record.content) == (n > 1)
        assert "\ufffd" not in (await desk.run("tiny")).content
        assert (await desk.run("refuse", n=2)).status == "done"
        record = await desk.run("refuse", n=2000)
        assert record.status == "failed"
        assert "40 are allowed" in record.content


@pytest.mark.parametrize("stage", ["wait", "thread", "approval", "backoff"])
async def test_a_cancelled_call_has_a_record(table: Any, stage: str) -> None:
    begun = anyio.Event()

    @kv.tool
    async def wait() -> None:
        begun.set()
        await anyio.sleep(60)

    @kv.tool
    def thread() -> None:
        time.sleep(0.05)

    @kv.tool(approve=True)
    async def approval() -> None: ...

    @kv.tool(retries=1, backoff=60)
    async def backoff() -> None:
        raise ValueError

    async with table(wait, thread, approval, backoff) as desk:
        desk.answer = lambda asked: None
        call = desk.call(stage)
        with anyio.move_on_after(0.02) as scope:
            await call.run()
        assert scope.cancelled_caught
        assert (call.record.status, call.record.ran) == ("cancelled", stage != "approval")
        await until_idle(desk.threads)


async def test_cancelling_threads_at_any_moment_leaks_no_slot() -> None:
    threads, runs = ToolThreads(3), []

    async def one(delay: float) -> None:
        with anyio.move_on_after(delay):
            await threads.run(lambda: runs.append(time.sleep(0.001)))

    async with anyio.create_task_group() as group:
        for i in range(150):
            group.start_soon(one, (i % 30) * 0.0004)
    await until_idle(threads)
    for _ in range(3):
        await threads.run(lambda: None)
    await until_idle(threads)
