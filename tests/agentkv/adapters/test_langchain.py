"""LangChain's own features, on nano in this process."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

import agentkv as kv
from agentkv.adapters.langchain import ChatModel
from examples.nano.tools import TOOLS
from tests.agentkv.conftest import WithTemplate, event_loop_goes_first
from tests.runtime.chat_styles import THINKING
from tests.waiting import PATIENCE

from .conftest import INSTRUCTIONS, NO_CALL, TWO_CALLS, TWO_RESULTS, freed, generating

pytestmark = pytest.mark.anyio


@tool
def weather(city: str) -> dict[str, Any]:
    """The weather in a city."""
    return TOOLS["weather"].run(city=city)


async def test_tools_are_called_and_their_results_read(ctx: kv.Context) -> None:
    model = ChatModel(ctx, temperature=0).bind_tools([weather])
    talk = [SystemMessage(INSTRUCTIONS), HumanMessage(TWO_CALLS)]
    asked = await model.ainvoke(talk)
    assert [call["args"]["city"] for call in asked.tool_calls] == ["Tolvik", "Brasno"]
    results = [await weather.ainvoke(call) for call in asked.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in results)
    answer = await model.ainvoke([*talk, asked, *results])
    assert all(str(told["sky"]) in answer.content for told in TWO_RESULTS)
    held = asked.usage_metadata["total_tokens"]
    assert answer.usage_metadata["input_token_details"]["cache_read"] == held


async def test_messages_are_streamed_as_they_are_said(ctx: kv.Context) -> None:
    model = ChatModel(ctx, temperature=0)
    async with event_loop_goes_first():
        chunks = [chunk async for chunk in model.astream(NO_CALL)]
    assert len([chunk for chunk in chunks if chunk.content]) > 1  # what is said while the reader is busy comes together
    whole = sum(chunks[1:], chunks[0])
    answer = await model.ainvoke(NO_CALL)
    assert whole.content == answer.content
    assert whole.usage_metadata["total_tokens"] == answer.usage_metadata["total_tokens"]
    calls = [chunk async for chunk in model.bind_tools([weather]).astream(TWO_CALLS)]
    assert [call["args"] for call in sum(calls[1:], calls[0]).tool_calls] == [{"city": "Tolvik"}, {"city": "Brasno"}]


async def test_a_batch_shares_its_forwards(ctx: kv.Context) -> None:
    model = ChatModel(ctx, temperature=0)
    answers = await model.abatch([NO_CALL, "What is 7 * 8?"] * 4)
    assert len({answer.content for answer in answers[::2]}) == 1
    assert max(step.decode_rows for step in ctx.steps) > 1


class Weather(BaseModel):
    city: Literal["Tolvik", "Brasno"]
    sky: Literal["sunny", "rainy"]


async def test_output_is_held_to_its_schema_by_a_grammar(ctx: kv.Context) -> None:
    model = ChatModel(ctx, temperature=2.0).with_structured_output(Weather)
    outputs = await model.abatch(["Which?"] * 8)
    assert all(isinstance(output, Weather) for output in outputs)
    assert len({output.model_dump_json() for output in outputs}) > 1


async def test_a_history_is_gone_on_with_and_forked(ctx: kv.Context) -> None:
    """Each token is computed once, but for a reply's last one, which is fed with what follows it."""
    model = ChatModel(ctx, temperature=0)
    talk: list[Any] = [HumanMessage(NO_CALL)]
    talk.append(await model.ainvoke(talk))
    held = talk[-1].usage_metadata["total_tokens"]
    for question in ("What is 7 * 8?", "And you?", "What is 7 * 9?"):
        before = ctx.stats.prefilled
        answer = await model.ainvoke([*talk, HumanMessage(question)])
        usage = answer.usage_metadata
        cached = usage["input_token_details"]["cache_read"]
        assert cached >= held  # an earlier question may begin alike
        assert ctx.stats.prefilled - before <= usage["input_tokens"] - cached + 1
    again = await model.ainvoke([*talk, HumanMessage(question), answer, HumanMessage("Thanks.")])
    assert again.usage_metadata["input_token_details"]["cache_read"] >= usage["total_tokens"]


async def test_what_the_model_thinks_is_a_block_of_its_own(with_template: WithTemplate) -> None:
    said = ["<think>\nhm, 4\n</think>\n\nIt is 4."] * 2 + ["It is 5."]
    async with kv.testing.replies(said, with_template(THINKING), capacity=512) as ctx:
        model = ChatModel(ctx, temperature=0, max_tokens=100)
        question = HumanMessage("What is 2 + 2?")
        chunks = [chunk async for chunk in model.astream([question])]
        for message in (sum(chunks[1:], chunks[0]), await model.ainvoke([question])):
            assert isinstance(message, AIMessage | AIMessageChunk)
            blocks = [(block["type"], block.get("reasoning") or block.get("text")) for block in message.content_blocks]
            assert blocks == [("reasoning", "hm, 4"), ("text", "It is 4.")]
        assert (await model.ainvoke([question, message, HumanMessage("And 5?")])).content == "It is 5."


async def test_a_cancelled_run_frees_its_branch(ctx: kv.Context) -> None:
    model = ChatModel(ctx, temperature=0, logit_bias={i: -100 for i in ctx.tokenizer.eos_ids})
    async with freed(ctx), anyio.create_task_group() as group:
        group.start_soon(model.ainvoke, NO_CALL)
        await generating(ctx)
        group.cancel_scope.cancel()
    async with freed(ctx):
        stream = model.astream(NO_CALL)
        async for _ in stream:
            break
        await stream.aclose()


def test_code_that_does_not_await_asks_as_well() -> None:
    model = ChatModel(kv.models.nano(), capacity=2048, threads=1, temperature=0)
    try:
        said = model.invoke(NO_CALL).content
        assert "".join(chunk.content for chunk in model.stream(NO_CALL)) == said
        assert {answer.content for answer in model.batch([NO_CALL] * 3)} == {said}
        assert asyncio.run(model.ainvoke(NO_CALL)).content == said
        for chunk in model.stream(NO_CALL):  # and hangs up
            assert chunk is not None
            break
    finally:
        model.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "agentkv-loop"]


def test_what_is_said_to_a_server_elsewhere_harms_nothing() -> None:
    ported = {"max_retries": 2, "api_key": "sk-1", "base_url": "https://x.invalid/v1", "stream_usage": False}
    model = ChatModel(kv.models.nano(), capacity=1024, threads=1, temperature=0, timeout=PATIENCE, **ported)
    try:
        assert "Nano" in model.invoke(NO_CALL).content
        assert model.max_retries == 2
    finally:
        model.close()


async def test_tokens_are_counted_by_the_models_own_tokenizer(ctx: kv.Context) -> None:
    model = ChatModel(ctx)
    assert model.get_token_ids(NO_CALL) == ctx.tokenizer.encode(NO_CALL)
    assert model.get_num_tokens_from_messages([HumanMessage(NO_CALL)]) > model.get_num_tokens(NO_CALL)


async def test_blocking_calls_are_for_other_threads(ctx: kv.Context) -> None:
    model = ChatModel(ctx, temperature=0)
    with pytest.raises(kv.WrongEventLoop, match="await"):
        model.invoke(NO_CALL)
    answer = await anyio.to_thread.run_sync(model.invoke, NO_CALL)
    assert answer.content == (await model.ainvoke(NO_CALL)).content


def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(kv.ModelError, match="no such folder"):
        ChatModel(tmp_path / "none").invoke(NO_CALL)
