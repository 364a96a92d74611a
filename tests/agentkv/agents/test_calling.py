"""One call of a tool: checks, approval, threads, results."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pydantic import BaseModel

import agentkv as kv

from .table import until_idle

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("held", [[], {}])
async def test_a_result_that_holds_itself_is_an_error_that_the_model_reads(table: Any, held: Any) -> None:
    @kv.tool
    async def give() -> object:
        held.update(more=held) if isinstance(held, dict) else held.append(held)
        return held

    async with table(give) as desk:
        record = await desk.run("give")
        assert (record.status, record.ran) == ("failed", True)
        assert f"a {type(held).__name__} that holds itself" in record.error


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
