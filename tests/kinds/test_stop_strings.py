"""Stop strings and control tokens: a stop string that is, or holds, a control token matches that token.

One more case is a row of `CASES`. Every way to generate is asked for each: in this process, over every protocol, whole
and streamed, and over a remote engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import agentkv as kv
from tests.agentkv.serve.conftest import Served, serving_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(frozen=True)
class Case:
    """What the model writes, control tokens included; the stop strings; the answer, and which of them ended it."""

    reply: str
    stop: list[str]
    text: str
    stopped_by: str | None


START, PAD = "<|im_start|>", "<|pad|>"  # of nano, whose turns end with <|im_end|>
CASES = [
    Case(f"Yes.{START}user", [START], "Yes.", START),
    Case(f"Yes.\n{START}user", [f"\n{START}"], "Yes.", f"\n{START}"),
    Case(f"Yes.{START}user\nNo.", [f"{START}user\n"], "Yes.", f"{START}user\n"),
    Case(f"Yes.{PAD}No.", [START, PAD], "Yes.", PAD),
    Case(f"{START}", [START], "", START),
    Case("Yes.", [START, "<|im_end|>"], "Yes.", None),  # it ends by itself
    Case("Yes.No.", ["No.<|im_end|>"], "Yes.", "No.<|im_end|>"),
    Case("Yes. No", ["s. N"], "Ye", "s. N"),
    Case(f"Yes.{PAD}start|> no", ["start", PAD + "x"], "Yes.", "start"),  # no part of a control token
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.reply!r}-{case.stop!r}")
USER: list[Any] = [{"role": "user", "content": "?"}]


@asynccontextmanager
async def saying(case: Case) -> AsyncIterator[kv.Context]:
    async with kv.testing.replies(lambda _: case.reply, threads=1) as ctx:
        yield ctx


@EVERY
async def test_in_this_process(case: Case) -> None:
    reason = "eos" if case.stopped_by is None else "stop"
    async with saying(case) as ctx:
        trunk = await ctx.branch(USER)
        whole = await (await trunk.fork()).generate(stop=case.stop)
        assert (whole.text, whole.finish_reason) == (case.text, reason)
        streamed = await trunk.fork()
        async with streamed.stream(stop=case.stop) as tokens:
            texts = [token.text async for token in tokens]
        assert ("".join(texts), tokens.generation.text) == (case.text, case.text)
        assert (tokens.generation.finish_reason, tokens.generation.tokens) == (reason, whole.tokens)


@EVERY
async def test_over_a_remote_engine(case: Case) -> None:
    reason = "eos" if case.stopped_by is None else "stop"
    async with (
        saying(case) as ctx,
        serving_of(ctx) as served,
        kv.Context.connect(f"{served.url}/v1", backend="agentkv") as far,
    ):
        trunk = await far.branch(USER)
        whole = await (await trunk.fork()).generate(stop=case.stop)
        assert (whole.text, whole.finish_reason) == (case.text, reason)
        async with (await trunk.fork()).stream(stop=case.stop) as tokens:
            texts = [token.text async for token in tokens]
        assert ("".join(texts), tokens.generation.finish_reason) == (case.text, reason)


async def over_chat(served: Served, case: Case) -> None:
    asked: Any = {"model": "nano", "messages": USER, "stop": case.stop}
    [choice] = (await served.openai.chat.completions.create(**asked)).choices
    assert (choice.message.content or "", choice.finish_reason) == (case.text, "stop")
    parts = [part async for part in await served.openai.chat.completions.create(**asked, stream=True)]
    deltas = [choice for part in parts for choice in part.choices]
    assert "".join(choice.delta.content or "" for choice in deltas) == case.text
    assert deltas[-1].finish_reason == "stop"


async def over_completions(served: Served, case: Case) -> None:
    asked: Any = {"model": "nano", "prompt": "?", "stop": case.stop}
    [choice] = (await served.openai.completions.create(**asked)).choices
    assert (choice.text, choice.finish_reason) == (case.text, "stop")
    parts = [part async for part in await served.openai.completions.create(**asked, stream=True)]
    assert "".join(choice.text for part in parts for choice in part.choices) == case.text


async def over_messages(served: Served, case: Case) -> None:
    asked: Any = {"model": "nano", "messages": USER, "stop_sequences": case.stop, "max_tokens": 50}
    ended = ("end_turn", None) if case.stopped_by is None else ("stop_sequence", case.stopped_by)
    whole = await served.anthropic.messages.create(**asked)
    assert "".join(block.text for block in whole.content if block.type == "text") == case.text
    assert (whole.stop_reason, whole.stop_sequence) == ended
    async with served.anthropic.messages.stream(**asked) as stream:
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(texts) == case.text
    assert (message.stop_reason, message.stop_sequence) == ended


async def over_branches(served: Served, case: Case) -> None:
    made = (await served.http.post("/v1/branches", json={"messages": USER})).raise_for_status().json()
    answer = await served.http.post(f"/v1/branches/{made['id']}/generate", json={"stop": case.stop})
    assert answer.raise_for_status().json()["generation"]["text"] == case.text


@EVERY
@pytest.mark.parametrize("protocol", [over_chat, over_completions, over_messages, over_branches])
async def test_over_http(case: Case, protocol: Any) -> None:
    async with saying(case) as ctx, serving_of(ctx) as served:
        await protocol(served, case)


# What is held back, since a stop string may begin with it, and the control token behind it.
HELD = [
    Case(f"E{START}x", ["END"], f"E{START}x", None),
    Case(f"E{START}EN{PAD}{PAD}", ["END"], f"E{START}EN{PAD}{PAD}", None),
    Case(f"<|im{START}END", ["<|im_end|>", "END"], f"<|im{START}", "END"),
]


@pytest.mark.parametrize("case", HELD, ids=lambda case: f"{case.reply!r}-{case.stop!r}")
@pytest.mark.parametrize("protocol", [over_chat, over_messages])
async def test_a_control_token_behind_what_is_held_back_keeps_its_place(case: Case, protocol: Any) -> None:
    async with saying(case) as ctx, serving_of(ctx) as served:
        await protocol(served, case)
