"""Whatever waits on a server that is idle, a request that would fit into an empty cache fits, and nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses import Response

import agentkv as kv
from agentkv.serve.conversations import ConversationCache

from ..conftest import Serve, Served

pytestmark = pytest.mark.anyio

CELLS = 300
LONG = "Read this: " + "x" * 150


async def respond(site: Served, said: str, after: Response | None = None, most: int = 20, **more: Any) -> Response:
    previous: dict[str, Any] = {} if after is None else {"previous_response_id": after.id}
    asked: dict[str, Any] = {"model": "nano", "input": said, "max_output_tokens": most, "temperature": 0}
    response: Response = await site.openai.responses.create(**asked, **previous, **more)
    return response


async def chat(site: Served, said: str) -> str | None:
    messages: Any = [{"role": "user", "content": said}]
    answer = await site.openai.chat.completions.create(model="nano", messages=messages, max_tokens=20, temperature=0)
    return answer.choices[0].message.content


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


def tokens(response: Response) -> int:
    assert response.usage is not None
    return response.usage.total_tokens


@pytest.mark.parametrize("followers", [("Who are you?",), ("Who are you?", "Thank you!")])
async def test_responses_that_share_cells_shut_nobody_out(serve: Serve, followers: Sequence[str]) -> None:
    async with serve(capacity=CELLS) as small, serve() as large:
        stored: list[list[Response]] = []
        for site in (small, large):
            first = await respond(site, LONG, most=5)
            stored.append([first, *[await respond(site, said, first) for said in followers]])
        assert await chat(small, "y" * 150) == await chat(large, "y" * 150)
        for theirs, ours in zip(*stored, strict=True):
            expected = await respond(large, "How are you?", ours)
            told = await respond(small, "How are you?", theirs)
            assert (told.output_text, tokens(told)) == (expected.output_text, tokens(expected))
            assert cached(told) > 0.9 * cached(expected)  # what they share came back; a few cells are computed sooner


@pytest.mark.parametrize("seed", range(3))
async def test_what_fits_into_an_empty_cache_is_answered_as_on_a_large_one(serve: Serve, seed: int) -> None:
    rng = random.Random(seed)
    async with serve(capacity=CELLS) as small, serve() as large:
        pairs: list[tuple[Response, Response]] = []
        for _ in range(40):
            said = rng.choice(["Who are you?", "Thank you!", "How are you?", LONG, LONG[:90]])
            if rng.random() < 0.3:
                assert await chat(small, said) == await chat(large, said)
                continue
            theirs, ours = rng.choice(pairs) if pairs and rng.random() < 0.7 else (None, None)
            expected = await respond(large, said, ours)
            if tokens(expected) > CELLS:
                continue
            told = await respond(small, said, theirs)
            assert (told.output_text, tokens(told)) == (expected.output_text, tokens(expected))
            pairs.append((told, expected))


async def test_what_a_running_message_needs_as_well_is_not_given_up_in_vain(serve: Serve) -> None:
    async with serve(capacity=CELLS) as site:
        first = await respond(site, LONG, most=5)
        endless = {"logit_bias": {str(token): -100 for token in site.ctx.tokenizer.eos_ids}}
        second = await respond(site, "Who are you?", first, most=CELLS, extra_body=endless)
        assert second.status == "incomplete"
        assert tokens(second) >= CELLS
        kept = site.server.cache.kept(f"response:{first.id}")
        assert kept is not None
        assert not kept.branch.closed


async def test_where_branches_are_lacking_the_oldest_conversation_goes(served: Served) -> None:
    own = ConversationCache(8)
    for text in ("one", "two"):
        own.put(text, await served.ctx.branch(text), promised=True)
    assert own.close_oldest()
    assert own.kept("one") is None
    assert own.kept("two") is not None


async def test_a_response_for_which_there_is_no_second_branch_is_kept(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none_left(_: kv.Branch) -> None:
        raise kv.TooManyBranches("256 are live")

    with monkeypatch.context() as patched:
        patched.setattr(kv.Branch, "fork", none_left)
        first = await respond(served, "Who are you?")
    assert first.status == "completed"
    assert cached(await respond(served, "Thank you!", first)) > 0


async def test_nothing_is_left_of_what_was_deleted(serve: Serve) -> None:
    async with serve(capacity=CELLS) as site:
        first = await respond(site, LONG, most=5)
        second = await respond(site, "Who are you?", first)
        await chat(site, "y" * 150)
        for response in (first, second):
            await site.openai.responses.delete(response.id)
        await site.until_idle()
        while site.server.cache.close_oldest():
            pass
        await site.until_idle()
        assert not site.ctx.branches
        assert site.ctx.stats.cells_used == 0
