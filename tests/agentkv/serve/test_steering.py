"""`/v1/branches/{name}/steer`: words that enter a generation, which goes on in the same response."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest

from agentkv.agents.control import TurnControl
from agentkv.serve.branches.registry import BranchEntry
from tests.waiting import until

from .conftest import Served, engine_held

Answers = dict[str, httpx.Response]
pytestmark = pytest.mark.anyio

ANSWER = "I am Nano, your desk agent."
WHO = {"name": "desk", "messages": [{"role": "user", "content": "Who are you?"}]}
PATH = "/v1/branches/desk"


async def made(served: Served, **given: Any) -> Any:
    response = await served.http.post("/v1/branches", json=given or WHO)
    assert response.status_code == 200, response.text
    return response.json()


async def steered(served: Served, *bodies: dict[str, Any], generate: dict[str, Any], last: str = "") -> Answers:
    """Generates, and has words come before the first token does; what each request was answered."""
    answers: Answers = {}

    async def post(name: str, path: str, body: dict[str, Any]) -> None:
        answers[name] = await served.http.post(f"{PATH}/{path}", json=body)

    with engine_held() as go:
        async with anyio.create_task_group() as group:
            group.start_soon(post, "generate", "generate?whole=true", generate)
            await until(lambda: _control(served) is not None)
            for index, body in enumerate(bodies):
                group.start_soon(post, f"steer {index}", "steer", body)
                await until(lambda count=index + 1: (c := _control(served)) is not None and len(c.waiting) == count)
            if last:
                group.start_soon(post, last, last, {})
                await until(lambda: all(scope.cancel_called for scope in _entry(served).running))
            go.set()
    return answers


def _entry(served: Served) -> BranchEntry:
    (branch,) = served.ctx.branches
    return next(entry for entry in served.server.branches._entries.values() if entry.branch is branch)


def _control(served: Served) -> TurnControl | None:
    return _entry(served).steering


def events_of(text: str) -> list[tuple[str, Any]]:
    pairs = [event.split("\n") for event in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_words_enter_and_it_goes_on_in_the_same_response(served: Served, streams: bool, at_once: bool) -> None:
    await made(served)
    steer = {"text": "Who are you?", "at_once": at_once}
    answers = await steered(served, steer, generate={"stream": streams})
    assert answers["steer 0"].json() == {"id": "desk", "object": "branch", "steered": steer}
    text = answers["generate"].text
    told = events_of(text)[-1][1] if streams else json.loads(text)
    assert told["generation"]["text"] == ANSWER
    assert [{"text": each["text"], "at_once": each["at_once"]} for each in told["steered"]] == [steer]
    said = [(message["role"], message["content"]) for message in told["messages"]]
    expected = [("user", "Who are you?"), ("assistant", ANSWER), ("user", "Who are you?"), ("assistant", ANSWER)]
    assert said == ([expected[0], *expected[2:]] if at_once else expected)
    if streams:
        names = [name for name, _ in events_of(text)]
        assert [name for name in names if name != "token"] == ["begin", "steered", "begin", "generation"]


async def test_words_enter_in_order(served: Served) -> None:
    await made(served)
    texts = ["Who are you?", "Really?", "How many Lumora are in stock?"]
    answers = await steered(served, *({"text": text} for text in texts), generate={})
    assert [each["text"] for each in answers["generate"].json()["steered"]] == texts
    said = [message["content"] for message in answers["generate"].json()["messages"] if message["role"] == "user"]
    assert said == ["Who are you?", *texts]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (PATH, {"text": "And?"}, 409, "not_generating"),
        ("/v1/branches/nobody", {"text": "And?"}, 404, "branch_closed"),
        (PATH, {}, 400, None),
        (PATH, {"text": ""}, 400, None),
        (PATH, {"text": "And?", "at_once": "soon"}, 400, None),
        (PATH, {"text": "And?", "at": 1}, 400, None),
    ],
)
async def test_refusals(served: Served, path: str, body: dict[str, Any], status: int, code: str | None) -> None:
    await made(served)
    response = await served.http.post(f"{path}/steer", json=body)
    assert response.status_code == status, response.text
    if code is not None:
        assert response.json()["error"]["code"] == code


async def test_words_for_what_is_no_conversation_are_refused(served: Served) -> None:
    await made(served, name="desk", text="Once upon a time")
    answers = await steered(served, {"text": "And?"}, generate={"max_tokens": 5})
    refused = answers["steer 0"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_a_chat")
    assert len(answers["generate"].json()["generation"]["tokens"]) == 5


async def test_words_that_come_before_a_stop_are_refused(served: Served) -> None:
    await made(served)
    answers = await steered(served, {"text": "And?"}, generate={"max_tokens": 1500}, last="stop")
    refused = answers["steer 0"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_generating")
    assert answers["stop"].json()["length"] == len(served.ctx.branches[0])
