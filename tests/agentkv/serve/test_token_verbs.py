"""`/v1/tokens`: token ids in and out, the same as a branch of the Context says; and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import agentkv as kv

from .conftest import Served, serving

pytestmark = pytest.mark.anyio
TOKENS = list(range(30, 80))


async def events(served: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with served.http.stream("POST", "/v1/tokens", json=body) as response:
        assert response.status_code == 200, await response.aread()
        lines = [line async for line in response.aiter_lines()]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def test_tokens_are_those_of_a_branch() -> None:
    async with serving() as served:
        branch = await served.ctx.branch(TOKENS)
        await branch.draw_as(2**40)
        sampling = {"temperature": 1.0, "seed": 4, "logit_bias": {"2": -100.0}}
        expected = await (branch).generate(
            max_tokens=20, sampling=kv.Sampling(temperature=1, seed=4, logit_bias={2: -100.0}), top_logprobs=2
        )
        body = {"tokens": TOKENS, "max_tokens": 20, "sampling": sampling, "draws": 2**40, "top_logprobs": 2}
        told = await events(served, body)
        assert [token for event in told for token in event.get("tokens", ())] == expected.tokens
        assert [logprob for event in told for logprob in event.get("logprobs", ())] == expected.logprobs
        tops = [top for event in told for top in event.get("tops", ())]
        assert tops == [[[top.id, top.logprob] for top in place] for place in expected.top_logprobs]
        assert told[0]["cached"] >= len(TOKENS) - 1
        assert told[-1]["finish_reason"] == "length"
        assert len(served.ctx.branches) == 1


async def test_rows_scores_and_prompts() -> None:
    async with serving() as served:
        assert (await served.http.post("/v1/tokens/prefill", json={"tokens": TOKENS})).json() == {"cached": 0}
        branch = await served.ctx.branch(TOKENS)
        assert branch.reused >= len(TOKENS) - 1
        row = await served.http.post("/v1/tokens/logits", json={"tokens": TOKENS})
        assert np.array_equal(np.frombuffer(row.content, "<f4"), await branch.logits())
        words = ["yes", "no"]
        choices = [served.ctx.tokenizer.encode(word) for word in words]
        told = (await served.http.post("/v1/tokens/select", json={"tokens": TOKENS, "choices": choices})).json()
        assert told["logprobs"] == (await branch.select(words)).logprobs


async def test_what_is_told_of_the_model() -> None:
    async with serving() as served:
        facts = (await served.http.get("/v1/tokens")).json()
        info = served.ctx.model_info
        assert facts["names"] == ["nano", "alias"]
        assert (facts["vocab_size"], facts["max_positions"]) == (info.vocab_size, info.max_positions)
        files = (await served.http.get("/v1/tokens/tokenizer")).json()["files"]
        assert files["tokenizer.json"] == (info.path / "tokenizer.json").read_text("utf-8")


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": []},
        {"tokens": [99999]},
        {"tokens": [-1]},
        {"tokens": "x"},
        {"max_tokens": 0},
        {"draws": -1},
        {"draws": 2**64},
        {"sampling": {"temprature": 1}},
        {"sampling": {"temperature": -1}},
        {"top_logprobs": 21},
        {"output": {"type": "regex", "pattern": "["}},
        {"more": 1},
        {"output": {"type": "regex", "pattern": "zzz"}, "made": 2, "output_made": 2},
        {"made": 99},
    ],
)
async def test_bad_bodies_are_refused(wrong: dict[str, Any]) -> None:
    async with serving() as served:
        response = await served.http.post("/v1/tokens", json={"tokens": TOKENS} | wrong)
        assert response.status_code == 400
        assert response.json()["error"]["message"]
        assert not served.ctx.branches
