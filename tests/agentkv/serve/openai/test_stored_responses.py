"""Responses that are stored: going on from one is a fork, whatever happened to its cells meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

import agentkv as kv

from ..conftest import Serve, Served
from .test_responses import ASKED, result

pytestmark = pytest.mark.anyio


async def first_of(served: Served) -> Response:
    return await served.openai.responses.create(**ASKED, input="What is the weather in Oslo?")


async def answer(served: Served, response: Response, **said: Any) -> Response:
    given: Any = [result(response.output[0], **said)]
    return await served.openai.responses.create(**ASKED, previous_response_id=response.id, input=given)


def new_tokens(response: Response, previous: Response) -> int:
    assert response.usage is not None
    assert previous.usage is not None
    return response.usage.input_tokens - previous.usage.total_tokens


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


async def test_branching_twice_prefills_only_what_is_new(served: Served) -> None:
    first = await first_of(served)
    answers = []
    for temp, sky in ((7, "rainy"), (9, "sunny")):
        before = served.ctx.stats.prefilled
        answers.append(await answer(served, first, temp=temp, sky=sky))
        prefilled, new = served.ctx.stats.prefilled - before, new_tokens(answers[-1], first)
        if len(answers) == 1:
            assert prefilled == new + 1  # and the last one drawn
        else:
            assert prefilled == answers[1].usage.input_tokens - cached(answers[1]) < new  # the two begin alike
    assert [each.output_text for each in answers] == [
        "It is 7 degrees and rainy in Oslo.",
        "It is 9 degrees and sunny in Oslo.",
    ]
    before = served.ctx.stats.prefilled
    more = await served.openai.responses.create(**ASKED, previous_response_id=answers[1].id, input="And in Tolvik?")
    assert served.ctx.stats.prefilled - before == new_tokens(more, answers[1]) + 1
    assert more.output[0].type == "function_call"
    assert more.output[0].call_id != first.output[0].call_id  # type: ignore[union-attr]


async def test_other_instructions_are_another_conversation(served: Served) -> None:
    first = await first_of(served)
    given: Any = [result(first.output[0], temp=7, sky="rainy")]
    for instructions in (None, "You are Nano."):
        asked = {**ASKED, "instructions": instructions}
        second = await served.openai.responses.create(**asked, previous_response_id=first.id, input=given)
        kept = served.server.cache.kept(f"response:{second.id}")
        assert kept is not None
        branch = kept.branch
        said = branch.messages
        assert [m.role for m in said] == [
            *(["system"] if instructions else []),
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert said[0].content == (instructions or "What is the weather in Oslo?")
        assert said[-3].calls[0].name == "weather"
        whole: Any = [{"role": "user", "content": "What is the weather in Oslo?"}, *first.output, *given]
        anew = await served.openai.responses.create(**asked, input=whole, store=False)
        assert anew.output_text == second.output_text


async def test_what_is_not_there_is_named(served: Served) -> None:
    first = await first_of(served)
    assert (await served.openai.responses.retrieve(first.id)).to_dict() == first.to_dict()
    items = await served.openai.responses.input_items.list(first.id)
    assert [item.type for item in items.data] == ["message"]
    again: Any = [*items.data, *first.output, result(first.output[0], temp=1, sky="snowy")]
    assert (await served.openai.responses.create(**ASKED, input=again)).status == "completed"
    await served.openai.responses.delete(first.id)
    for read in (served.openai.responses.retrieve, served.openai.responses.delete):
        with pytest.raises(openai.NotFoundError):
            await read(first.id)
    unstored = await served.openai.responses.create(model="nano", input="Who are you?", store=False)
    for gone in (first.id, unstored.id, "resp_x", "../etc"):
        with pytest.raises(openai.BadRequestError) as refused:
            await served.openai.responses.create(model="nano", input="hi", previous_response_id=gone)
        assert refused.value.code == "previous_response_not_found"
        assert refused.value.param == "previous_response_id"


@pytest.mark.parametrize("query", ["order=up", "limit=0", "limit=x", "after=y", "include=z"])
async def test_lists_of_items_take_known_parameters(served: Served, query: str) -> None:
    first = await first_of(served)
    response = await served.http.get(f"/v1/responses/{first.id}/input_items?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]


async def test_the_response_used_longest_ago_gives_way(serve: Serve) -> None:
    async with serve(most_kept=2) as served:
        first = await first_of(served)
        second = await first_of(served)
        await answer(served, first, temp=7, sky="rainy")
        with pytest.raises(openai.BadRequestError, match="gave way"):
            await answer(served, second, temp=7, sky="rainy")
        assert len(served.ctx.branches) == 2


@pytest.mark.parametrize("to_disk", [False, True])
async def test_stored_responses_leave_a_small_cache_and_go_on_as_if_they_had_not(
    serve: Serve, tmp_path: Path, to_disk: bool
) -> None:
    offload = kv.Offload(folder=tmp_path, memory_bytes=0 if to_disk else 1 << 30)
    async with serve(capacity=256, offload=offload) as served:
        first = await first_of(served)
        for number in range(4):
            asked: Any = {"model": "nano", "input": f"Number {number}. " * 12, "temperature": 0}
            await served.openai.responses.create(**asked, max_output_tokens=8)
        kept = served.server.cache.kept(f"response:{first.id}")
        assert kept is not None
        branch = kept.branch
        assert branch.offloaded
        before = served.ctx.stats.prefilled
        second = await answer(served, first, temp=7, sky="rainy")
        assert second.output_text == "It is 7 degrees and rainy in Oslo."
        assert served.ctx.stats.prefilled - before == new_tokens(second, first) + 1


async def test_forks_of_one_response_at_once(served: Served) -> None:
    first = await first_of(served)
    before = served.ctx.stats.prefilled
    answers = await kv.gather(*(answer(served, first, temp=temp, sky="rainy") for temp in (2, 3, 4, 5)))
    assert [each.output_text for each in answers] == [
        f"It is {temp} degrees and rainy in Oslo." for temp in (2, 3, 4, 5)
    ]
    new = sum(new_tokens(each, first) + 1 for each in answers)
    assert served.ctx.stats.prefilled - before <= new


async def test_a_response_that_was_cut_goes_on(served: Served) -> None:
    asked: dict[str, Any] = {"model": "nano", "temperature": 0}
    cut = await served.openai.responses.create(**asked, input="Who are you?", max_output_tokens=2)
    more = await served.openai.responses.create(**asked, previous_response_id=cut.id, input="Who are you?")
    kept = served.server.cache.kept(f"response:{more.id}")
    assert kept is not None
    branch = kept.branch
    assert [message.content for message in branch.messages[:3]] == ["Who are you?", cut.output_text, "Who are you?"]


async def test_conversations_that_nobody_was_promised_give_way_first(serve: Serve) -> None:
    async with serve(most_kept=2) as served:
        first = await first_of(served)
        for number in range(3):
            said: Any = [{"role": "user", "content": f"Number {number}."}]
            await served.openai.chat.completions.create(model="nano", messages=said, max_tokens=4)
        assert (await answer(served, first, temp=7, sky="rainy")).status == "completed"


async def test_a_stream_that_fails_on_its_way_says_so(served: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 5000}}, "required": ["a"]}
    form: Any = {"format": {"type": "json_schema", "name": "long", "schema": schema}}
    kinds = []
    async for event in await served.openai.responses.create(model="nano", input="hi", text=form, stream=True):
        kinds.append(event.type)
        if kinds.count("response.output_text.delta") == 1 and kinds[-1] == "response.output_text.delta":
            await served.server.admission.drain(0)
    assert event.type == "response.failed"
    assert event.response.error is not None
    assert "stopping" in event.response.error.message
    assert not served.ctx.branches
