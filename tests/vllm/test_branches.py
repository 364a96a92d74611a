"""The verbs over vLLM, beside the same weights in this process."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Literal

import numpy as np
import pytest
from pydantic import BaseModel
from rich.console import Console

import agentkv as kv
from agentkv.overflow import DropOldest

from .server import WEIGHTS, VLLMServer

pytestmark = pytest.mark.anyio
QUESTION = [{"role": "user", "content": "What is the weather in Tolvik and in Brasno?"}]


@pytest.fixture
async def local() -> AsyncIterator[kv.Context]:
    async with kv.Context.open(WEIGHTS, backend="torch", kv_dtype="fp32", threads=1) as ctx:
        yield ctx


async def test_greedy_text_scores_and_logits_are_those_of_the_weights(ctx: kv.Context, local: kv.Context) -> None:
    said = []
    for context in (ctx, local):
        branch = await context.branch(QUESTION)
        kid = await branch.fork()
        generation = await branch.generate(max_tokens=48, top_logprobs=3)
        choice = await kid.select(["I", "yes", "no"])
        said.append((generation, choice, await kid.logits()))
    (there, picked, row), (here, mine, whole) = said
    assert there.tokens == here.tokens
    assert there.text == here.text
    assert there.finish_reason == here.finish_reason
    np.testing.assert_allclose(there.logprobs, here.logprobs, atol=2e-3)
    assert [[top.id for top in place] for place in there.top_logprobs] == [
        [top.id for top in place] for place in here.top_logprobs
    ]
    assert picked == mine
    np.testing.assert_allclose(picked.logprobs, mine.logprobs, atol=2e-2)
    told = np.isfinite(row)
    assert told.sum() == ctx.model_info.top_logits == 20
    expected = whole - np.log(np.exp(whole.astype(np.float64)).sum())
    np.testing.assert_allclose(row[told], expected[told], atol=2e-3)


async def test_draws_depend_on_seed_branch_and_position(ctx: kv.Context) -> None:
    how = {"max_tokens": 24, "sampling": kv.Sampling(temperature=1.5, seed=11)}
    trunk = await ctx.branch(QUESTION)
    await trunk.draw_as(3)
    mark = trunk.mark()
    first = await trunk.generate(**how)
    await trunk.rollback(mark)
    assert (await trunk.generate(**how)).tokens == first.tokens
    await trunk.rollback(mark)
    kids = await trunk.fork(3)
    said = await kv.gather(*(kid.generate(**how) for kid in kids))
    assert len({tuple(each.tokens) for each in said}) == 3


async def test_stop_strings_streams_and_adoption(ctx: kv.Context) -> None:
    trunk = await ctx.branch([{"role": "user", "content": "Who are you?"}])
    kid = await trunk.fork()
    stopped = await kid.generate(stop=["desk"])
    assert (stopped.finish_reason, stopped.text) == ("stop", "I am Nano, your ")
    async with trunk.stream(max_tokens=64) as tokens:
        read = [await anext(tokens) for _ in range(3)]
    assert trunk.tokens[-3:] == [token.id for token in read]
    await trunk.adopt(kid)
    assert trunk.tokens == kid.tokens
    biased = await (await ctx.branch("a")).generate(max_tokens=4, sampling=kv.Sampling(logit_bias={7: 100}))
    assert biased.tokens == [7] * 4


class Weather(BaseModel):
    city: Literal["Tolvik", "Brasno"]
    degrees: Literal[1, 2, 3]


async def test_typed_output_is_held_by_the_server(ctx: kv.Context) -> None:
    how = {"max_tokens": 100, "sampling": kv.Sampling(temperature=1.5, seed=2)}
    outputs = [
        (await (await ctx.branch("Which?")).generate(output=output, **how)).output
        for output in (Weather, Literal["yes", "no"], kv.Regex("[0-9]{4}"), kv.Grammar('start: "a" | "bc"'), bool)
    ]
    assert isinstance(outputs[0], Weather)
    assert outputs[1] in ("yes", "no")
    assert outputs[2].isdigit()
    assert outputs[3] in ("a", "bc")
    assert isinstance(outputs[4], bool)


async def test_the_demo_runs_with_one_line_changed(server: VLLMServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WEIGHTS.parents[1]))
    import desk_agent  # type: ignore[import-not-found]

    monkeypatch.setattr(kv.Context, "open", lambda *_, **__: kv.Context.connect(server.url))
    agents = await desk_agent.desk_agent(Console(file=io.StringIO(), width=120), None)
    runs = [agent.run for agent in agents]
    assert [[(call.name, call.arguments) for call in run.calls] for run in runs] == desk_agent.EXPECTED_CALLS
    assert [len(agent.rollbacks) for agent in agents] == [0, 1, 0, 0, 0]


async def test_what_it_cannot_do_is_refused_by_name(ctx: kv.Context) -> None:
    branch = await ctx.branch(QUESTION)
    with pytest.raises(kv.InvalidInput, match="forget"):
        await branch.forget(1, 3)
    with pytest.raises(kv.InvalidInput, match="speculative"):
        await branch.generate(speculative=kv.spec.PromptLookup())
    with pytest.raises(kv.InvalidInput, match="temperature"):
        await branch.generate(sampling=kv.Sampling(temperature=5))
    with pytest.raises(kv.PositionsExhausted):
        await branch.extend([5] * 5000)


async def test_a_policy_makes_room_where_positions_run_out(ctx: kv.Context) -> None:
    endless = kv.Sampling(logit_bias={2: -100})
    branch = await ctx.branch([300 + i % 50 for i in range(4040)], overflow=DropOldest(keep=4, batch=20))
    generation = await branch.generate(max_tokens=150, sampling=endless)
    assert len(generation.tokens) == 150
    assert branch.tokens[:4] == [300, 301, 302, 303]
    assert branch.tokens[-150:] == generation.tokens
    assert len(branch) < 4096
    stuck = await ctx.branch([7] * 4090)
    assert (await stuck.generate(max_tokens=150, sampling=endless)).finish_reason == "context_full"
