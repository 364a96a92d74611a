"""The same cases through `kv.Agent` and through a server: of nano, and of replies that are written down."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import agentkv as kv
from agentkv.agents.answer_format import ANSWER_NOW
from agentkv.evaluation import serving
from agentkv.evaluation.agent_runner import AgentRunner
from agentkv.evaluation.cases import Case
from agentkv.evaluation.outcome import Outcome, Runner
from agentkv.evaluation.own import own_cases
from agentkv.evaluation.run import CaseResult, evaluate
from agentkv.evaluation.server_runner import server_runner
from agentkv.evaluation.serving import served

from .conftest import document, in_world, made

pytestmark = pytest.mark.anyio

Through = Literal["agent", "server"]
ONE_OF_EACH = list({case.category: case for case in reversed(own_cases())}.values())


@asynccontextmanager
async def runner_of(
    ctx: kv.Context, through: Through, max_tokens: int = 200, tool_choice: str = "auto"
) -> AsyncIterator[Runner]:
    if through == "agent":
        yield AgentRunner(ctx, max_tokens, tool_choice, {})
        return
    async with served(ctx) as url, server_runner(url, "any", max_tokens, tool_choice) as runner:
        yield runner


def script_of(case: Case, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """What a model says that makes these calls, again where a tool is at fault, and answers what is right."""
    assert case.world is not None
    again = {fault.tool for fault in case.world.faults}
    made_calls = [
        kv.testing.call(name, **arguments) for name, arguments in calls for _ in range(2 if name in again else 1)
    ]
    rounds = [made_calls] if case.category == "parallel" else made_calls
    return [*rounds, "; ".join(texts[0] for texts in case.expected.says) or "Done."]


@pytest.mark.parametrize("through", ["agent", "server"])
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.category)
async def test_a_model_that_does_what_is_asked_is_right(case: Case, through: Through) -> None:
    calls = case.expected.solution
    if calls is None:
        calls = [("find_contact", {"name": "Clara Diaz"})] if case.expected.called else []
    async with kv.testing.replies(script_of(case, calls)) as ctx, runner_of(ctx, through) as runner:
        [result] = await evaluate([case], runner, 1)
    assert result.verdict == (True, ""), result.outcome
    assert result.outcome.tokens > 0
    assert result.outcome.seconds > 0
    assert [call.name for call in result.outcome.calls if call.error is None] == [
        name for name, _ in calls if case.expected.called is None
    ]


@pytest.mark.parametrize("through", ["agent", "server"])
async def test_a_model_that_answers_without_the_result_is_wrong(through: Through) -> None:
    case = made(in_world())
    async with kv.testing.replies(["It is 3 degrees."]) as ctx, runner_of(ctx, through) as runner:
        [result] = await evaluate([case], runner, 1)
    assert result.verdict == (False, "never got what get_weather(city='Oslo') returns")


@pytest.mark.parametrize("through", ["agent", "server"])
@pytest.mark.parametrize(
    ("reply", "right"),
    [
        (kv.testing.call("get_weather", city="oslo"), True),
        (kv.testing.call("get_weather", city="Rome"), False),
        (["Let me see. ", kv.testing.call("get_weather", city="Oslo")], True),
        ("It is cold in Oslo.", False),
    ],
)
async def test_of_tools_that_do_nothing_one_message_is_judged(reply: Any, right: bool, through: Through) -> None:
    async with kv.testing.replies([reply]) as ctx, runner_of(ctx, through) as runner:
        [result] = await evaluate([made(document())], runner, 1)
    assert result.verdict.right is right
    assert result.outcome.error is result.outcome.stopped is None
    assert ("get_weather" in result.outcome.raw) is bool(result.outcome.calls)


async def test_a_call_in_another_spelling_is_told_as_rescued() -> None:
    written = '```json\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n```'
    async with kv.testing.replies([written]) as ctx:
        [result] = await evaluate([made(document())], AgentRunner(ctx, 200, "auto", {}), 1)
    assert result.verdict.right
    assert [call.rescued for call in result.outcome.calls] == ["json"]


@pytest.mark.parametrize("through", ["agent", "server"])
async def test_what_ends_a_case_early_is_told(through: Through) -> None:

    def calling(text: str) -> Any:
        if ANSWER_NOW in text:
            return "It is cold."
        return kv.testing.call("get_weather", city="Oslo" + " " * text.count("get_weather"))

    looping = made(in_world(id="rounds"))
    async with kv.testing.replies(calling) as ctx, runner_of(ctx, through) as runner:
        rounds = await runner.answer(looping)
    # A client of a server may ask for more; an agent is held to an answer in its last message.
    stopped, calls = ("max_rounds", 8) if through == "server" else (None, 7)
    assert (rounds.stopped, rounds.error, len(rounds.calls)) == (stopped, None, calls)
    async with kv.testing.replies(["a long story " * 20]) as ctx, runner_of(ctx, through, 8) as runner:
        tokens = await runner.answer(made(document(expected={"called": False})))
    assert (tokens.stopped, tokens.error, tokens.tokens) == ("max_message_tokens", None, 8)
    async with kv.testing.replies([]) as ctx, runner_of(ctx, through) as runner:
        error = await runner.answer(made(document()))
    assert error.error is not None
    assert "all 0 replies of the script were given" in error.error


@pytest.mark.parametrize("through", ["agent", "server"])
async def test_the_first_message_of_a_case_may_have_to_call(through: Through) -> None:
    [asked, *_] = own_cases()
    async with (
        kv.Context.open(kv.models.nano(), 4096) as ctx,
        runner_of(ctx, through, 64, "required") as runner,
    ):
        [turn, message] = await evaluate([asked, made(document(question="Hello."))], runner, 2)
    assert turn.outcome.calls
    assert turn.outcome.stopped is None  # it could answer
    assert message.outcome.calls


def told(results: Sequence[CaseResult]) -> list[Outcome]:
    """Without what names branches and calls."""
    return [replace(result.outcome, raw="", seconds=0.0) for result in results]


async def test_no_case_knows_of_another() -> None:
    """Nano says the same to each case, alone and beside others, in the process and over HTTP."""
    cases = [case for case in own_cases() if case.category == "one_tool"][::4]
    bfcl = made(document(question="What is the weather in Oslo?"))
    seen: list[CaseResult] = []
    async with kv.Context.open(kv.models.nano(), 16384) as ctx:
        runner = AgentRunner(ctx, 64, "auto", {})
        alone = await evaluate([*cases, bfcl], runner, 1)
        beside = await evaluate([*cases, bfcl], runner, 8, seen.append)
        assert ctx.branches == []
        async with runner_of(ctx, "server", 64) as over_http:
            served_ones = await evaluate([*cases, bfcl], over_http, 8)
    assert [result.case for result in beside] == [*cases, bfcl]
    assert sorted(result.case.id for result in seen) == sorted(case.id for case in [*cases, bfcl])
    assert told(alone) == told(beside)
    first = [outcome.calls[:1] for outcome in told(alone)]  # an agent ends a message before it repeats a call
    assert [outcome.calls[:1] for outcome in told(served_ones)] == first
    assert any(outcome.calls for outcome in told(alone))


async def test_a_prompt_that_does_not_fit_is_the_error_of_its_case() -> None:
    async with kv.Context.open(kv.models.nano(), 64) as ctx:
        [long, short] = await evaluate(
            [made(document(question="word " * 400)), made(document(id="b"))], AgentRunner(ctx, 16, "auto", {}), 2
        )
    assert long.outcome.error is not None
    assert long.outcome.error.startswith("ContextFull: ")
    assert not long.verdict.right
    assert short.case.id == "b"


async def test_nothing_that_answers_ends_the_evaluation() -> None:
    async with server_runner("http://127.0.0.1:1/v1", "m", 8, "auto") as runner:
        with pytest.raises(kv.RemoteError, match=r"nothing answers at http://127.0.0.1:1/v1/: .*is the server up"):
            await evaluate([made(document())] * 3, runner, 2)


@pytest.mark.parametrize("url", ["127.0.0.1:80", "http://[", "ftp://x/v1", ""])
async def test_what_is_no_url(url: str) -> None:
    with pytest.raises((kv.InvalidInput, kv.RemoteError), match="http://host:8080/v1"):
        async with server_runner(url, "m", 8, "auto") as runner:
            await runner.answer(made(document()))


@asynccontextmanager
async def answering(status: int, *bodies: Any) -> AsyncIterator[Runner]:
    """A server that answers so, whatever it is asked."""
    left = list(bodies)

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(left.pop(0) if len(left) > 1 else left[0], status)

    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    async with serving.listening(app) as url, server_runner(url, "m", 8, "auto") as runner:
        yield runner


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_server_that_lets_nobody_in_ends_the_evaluation(status: int) -> None:
    async with answering(status, {"error": {"message": "go away"}}) as runner:
        with pytest.raises(kv.RemoteError, match="go away"):
            await evaluate([made(document())], runner, 1)


def message(**parts: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **parts}}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


@pytest.mark.parametrize(
    ("status", "body", "error", "calls"),
    [
        (400, {"error": {"message": "no such schema"}}, "no such schema", 0),
        (200, {**message(), "choices": []}, "without a choice", 0),
        (200, message(content="Hello."), None, 0),
        (200, message(tool_calls=[call('{"city": "Oslo"}')]), None, 1),
        (200, message(tool_calls=[call('{"city": ')]), None, 1),
        (200, message(tool_calls=[call("[]")]), None, 1),
        (200, message(tool_calls=[call("")]), None, 1),
    ],
)
async def test_odd_answers_of_servers_are_their_cases(status: int, body: Any, error: str | None, calls: int) -> None:
    async with answering(status, body) as runner:
        outcome = await runner.answer(made(document()))
    assert (error or "") in (outcome.error or "")
    assert (outcome.error is None) is (error is None)
    assert len(outcome.calls) == calls
    json.dumps(outcome.raw)


async def test_a_server_that_is_not_right_about_calls_of_a_world() -> None:
    bad = message(tool_calls=[call("{"), {**call("{}"), "id": "2"}])
    async with answering(200, bad, message(content="3")) as runner:
        outcome = await runner.answer(made(in_world()))
    assert [called.error for called in outcome.calls] == [
        "bad arguments: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "bad arguments: city: Field required",
    ]
    assert outcome.text == "3"
