"""How much a model may think, as three protocols say it. The model is a scripted one that thinks for long."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import agentkv as kv
from agentkv._model.generate_options import checked_thinking
from agentkv.output._thinking import HAND_OVER
from agentkv.serve import Settings
from agentkv.serve.reasoning import EFFORTS, reasoning_of

from ...runtime.chat_styles import THINKING
from ..context.test_thinking import nano_with
from .conftest import SETTINGS, Served, serving_of

pytestmark = pytest.mark.anyio

THOUGHT, ANSWER = "Hm, " * 900 + "4!", "It is 4."
SAID = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
QUESTION = {"role": "user", "content": "What is 2 + 2?"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "nano", "messages": [QUESTION], "stream_options": {"include_usage": True}},
    RESPONSES: {"model": "nano", "input": [QUESTION]},
    MESSAGES: {"model": "nano", "messages": [QUESTION], "max_tokens": 3900},
}


class Row(NamedTuple):
    """A request, and how many tokens of reasoning it allows; None for any number, 0 for none."""

    path: str
    asked: dict[str, Any]
    budget: int | None


ROWS = [
    Row(CHAT, {}, None),
    *(Row(CHAT, {"reasoning_effort": effort}, 0) for effort in ("none", "minimal")),
    Row(CHAT, {"reasoning_effort": "low"}, 512),
    Row(CHAT, {"reasoning_effort": "medium"}, 2048),
    Row(CHAT, {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}, 512),
    Row(RESPONSES, {}, None),
    Row(RESPONSES, {"reasoning": {"effort": "none"}}, 0),
    Row(RESPONSES, {"reasoning": {"effort": "low"}}, 512),
    Row(MESSAGES, {}, None),
    Row(MESSAGES, {"thinking": {"type": "disabled"}}, 0),
    Row(MESSAGES, {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, 0),
    Row(MESSAGES, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, 512),
    *(Row(MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": n}}, n) for n in (1, 7, 1024)),
    Row(MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 3899}}, None),
]
# More ways to allow any number: each is seconds of the same thought.
MORE_ROWS = [
    Row(MESSAGES, {"thinking": {"type": "adaptive"}}, None),
    *(Row(CHAT, {"reasoning_effort": effort}, None) for effort in ("high", "xhigh")),
    Row(RESPONSES, {"reasoning": {"effort": "high"}}, None),
    Row(MESSAGES, {"output_config": {"effort": "max"}}, None),
]


@asynccontextmanager
async def thinker(path: Path, settings: Settings = SETTINGS) -> AsyncIterator[Served]:
    model = nano_with(THINKING, path / "model")
    async with kv.testing.replies(lambda _: SAID, model, capacity=16384) as ctx, serving_of(ctx, settings) as served:
        yield served


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def served(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with thinker(tmp_path_factory.mktemp("thinker")) as served:
        yield served


async def whole(served: Served, row: Row) -> tuple[str, str, int | None]:
    """Reasoning, answer, and tokens of reasoning, where the protocol tells them."""
    body = {key: value for key, value in BODIES[row.path].items() if key != "stream_options"}
    response = await served.http.post(row.path, json={**body, **row.asked})
    assert response.status_code == 200, response.text
    told = response.json()
    match row.path:
        case "/v1/chat/completions":
            message = told["choices"][0]["message"]
            count = told["usage"]["completion_tokens_details"]["reasoning_tokens"]
            return message.get("reasoning_content") or "", message["content"], count
        case "/v1/responses":
            texts = {item["type"]: item["content"][0]["text"] for item in told["output"]}
            count = told["usage"]["output_tokens_details"]["reasoning_tokens"]
            return texts.get("reasoning", ""), texts["message"], count
    blocks = {block["type"]: block.get("thinking", block.get("text")) for block in told["content"]}
    return blocks.get("thinking", ""), blocks["text"], None


async def streamed(served: Served, row: Row) -> tuple[str, str, int | None]:
    response = await served.http.post(row.path, json={**BODIES[row.path], **row.asked, "stream": True})
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    match row.path:
        case "/v1/chat/completions":
            deltas = [choice["delta"] for event in events for choice in event["choices"]]
            count = events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"]
            return _joined(deltas, "reasoning_content"), _joined(deltas, "content"), count
        case "/v1/responses":
            deltas = [{event["type"].rpartition(".")[0]: event.get("delta")} for event in events]
            count = events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"]
            return _joined(deltas, "response.reasoning_text"), _joined(deltas, "response.output_text"), count
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return _joined(deltas, "thinking"), _joined(deltas, "text"), None


def _joined(deltas: list[dict[str, Any]], key: str) -> str:
    return "".join(delta.get(key) or "" for delta in deltas)


@pytest.mark.parametrize(
    "row",
    [*ROWS, *(pytest.param(row, marks=pytest.mark.soak) for row in MORE_ROWS)],
    ids=lambda row: f"{row.path} {json.dumps(row.asked)}",
)
async def test_budgets(served: Served, row: Row) -> None:
    reasoning, answer, count = await whole(served, row)
    assert answer == ANSWER
    cut = reasoning.removesuffix(HAND_OVER.strip()).rstrip("\n")
    if row.budget == 0:
        assert (reasoning, count or 0) == ("", 0)
    elif row.budget is None:
        assert reasoning == THOUGHT
    else:
        tokens = served.ctx.tokenizer.encode("\n" + cut)
        assert cut != reasoning
        assert THOUGHT.startswith(cut)
        assert abs(len(tokens) - row.budget) <= 1
    if count is not None and row.budget != 0:
        most = len(served.ctx.tokenizer.encode(f"\n{reasoning}\n"))
        assert abs(count - most) <= 1
    assert await streamed(served, row) == (reasoning, answer, count)


@pytest.mark.parametrize("budget", [3900, 9000])
async def test_a_thought_that_leaves_nothing_for_an_answer_is_refused(served: Served, budget: int) -> None:
    asked = {**BODIES[MESSAGES], "thinking": {"type": "enabled", "budget_tokens": budget}}
    response = await served.http.post(MESSAGES, json=asked)
    assert response.status_code == 400
    told = response.json()["error"]
    assert told["type"] == "invalid_request_error"
    assert "max_tokens is 3900, but must be greater than thinking.budget_tokens" in told["message"]
    counted = await served.http.post(f"{MESSAGES}/count_tokens", json={**asked, "max_tokens": None})
    assert counted.status_code == 200, "there nothing is generated"


async def test_a_branch_takes_the_option_of_the_sdk(served: Served) -> None:
    made = await served.http.post("/v1/branches", json={"messages": [QUESTION]})
    name = made.json()["branch"] if "branch" in made.json() else made.json()["id"]
    asked = await served.http.post(f"/v1/branches/{name}/generate", json={"thinking": 7, "max_tokens": 100})
    assert HAND_OVER in asked.json()["generation"]["text"], asked.json()
    for wrong in (-1, "much", 1.5):
        refused = await served.http.post(f"/v1/branches/{name}/generate", json={"thinking": wrong})
        assert refused.status_code == 400


@pytest.mark.parametrize("effort", EFFORTS)
def test_a_template_that_knows_efforts_keeps_to_them_itself(effort: str) -> None:
    thinking, variables = reasoning_of(None, effort, {"reasoning_effort", "messages"})
    assert variables == {"reasoning_effort": effort}
    assert thinking is (False if effort in ("none", "minimal") else None)
    assert checked_thinking(EFFORTS[effort]) == EFFORTS[effort]
    for name in ("enable_thinking", "thinking"):
        assert reasoning_of(None, effort, {name}) == (EFFORTS[effort], {name: bool(EFFORTS[effort])})
