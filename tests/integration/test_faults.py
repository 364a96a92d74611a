"""What fails beside a branch must not touch it: its tokens and its logits keep their bits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import agentkv as kv
from tests.conformance.configs import CONFIGS
from tests.conftest import FolderFactory
from tests.faults import fail_at
from tests.integration.test_bits import OTHER_CACHES, model_folder

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("failing_caches")]

PROMPT = list(range(30, 61))
KIDS, TOKENS = 4, 24
Outcome = tuple[list[int], list[float], bytes]
Disturbance = Callable[[kv.Context, kv.Branch], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tiny_exported_folder: FolderFactory) -> Path:
    kind, fields = CONFIGS["llama-gqa2-d64"]
    return tiny_exported_folder(kind, **fields)


async def outcomes(ctx: kv.Context, disturb: Disturbance | None = None) -> list[Outcome]:
    """Tokens, log-probabilities and final logits of four branches that generate beside a disturbance."""
    trunk = await ctx.branch(PROMPT)
    kids = await trunk.fork(KIDS)
    for index, kid in enumerate(kids):
        await kid.extend([100 + index])

    async def disturbed() -> None:
        if disturb is not None:
            await disturb(ctx, trunk)

    *outs, _ = await kv.gather(
        *(kid.generate(max_tokens=TOKENS, sampling=kv.Sampling(temperature=1, seed=5)) for kid in kids), disturbed()
    )
    assert {out.finish_reason for out in outs} <= {"length", "eos"}
    result = []
    for kid, out in zip(kids, outs, strict=True):
        result.append((out.tokens, out.logprobs, (await kid.logits()).tobytes()))
    assert len({tuple(tokens) for tokens, _, _ in result}) == KIDS
    return result


async def a_failed_forward(ctx: kv.Context, trunk: kv.Branch) -> None:
    await fail_at(ctx, 1, 3)
    other = await ctx.branch([9, 8, 7])
    assert other.tokens == [9, 8, 7]


async def a_full_context(ctx: kv.Context, trunk: kv.Branch) -> None:
    with pytest.raises(kv.ContextFull):
        await trunk.extend([5] * 1000)
    with pytest.raises(kv.ContextFull):
        await ctx.branch([6] * 1000)


async def too_many_branches(ctx: kv.Context, trunk: kv.Branch) -> None:
    more = await trunk.fork(256 - ctx.stats.branches)
    with pytest.raises(kv.TooManyBranches):
        await trunk.fork()
    with pytest.raises(kv.TooManyBranches):
        await ctx.branch([1])
    for branch in more:
        await branch.close()


async def forks_that_come_and_go(ctx: kv.Context, trunk: kv.Branch) -> None:
    for _ in range(4):
        kids = await trunk.fork(2)
        await kids[0].extend([11] * 7)
        await kids[1].generate(max_tokens=3)
        await kids[0].rollback(20)
        await kids[0].close()
        await kids[1].close()


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("disturb", [a_failed_forward, a_full_context, too_many_branches, forks_that_come_and_go])
async def test_others_keep_their_bits(folder: Path, disturb: Disturbance, layer: int) -> None:
    async with kv.Context.open(folder, capacity=512, kv_dtype="fp32") as ctx:
        want = await outcomes(ctx)
    async with kv.Context.open(folder, capacity=512, kv_dtype="fp32") as ctx:
        assert await outcomes(ctx, disturb) == want
    async with kv.Context.open(folder, capacity=512, kv_dtype="fp32") as ctx:
        await fail_at(ctx, layer, KIDS + 5)  # a merged forward, in the middle of the model
        assert await outcomes(ctx, disturb) == want
        assert ctx.stats.retries > 0


@pytest.mark.parametrize("name", OTHER_CACHES)
async def test_so_they_do_however_a_model_attends(tiny_exported_folder: FolderFactory, name: str) -> None:
    folder = model_folder(tiny_exported_folder, name)
    for disturb in (a_failed_forward, a_full_context, forks_that_come_and_go):
        await test_others_keep_their_bits(folder, disturb, 1)


async def test_an_extend_that_fails_alone_is_undone_and_can_be_repeated(folder: Path) -> None:
    async with kv.Context.open(folder, capacity=512, kv_dtype="fp32", max_batch_tokens=8) as ctx:
        whole = await ctx.branch(PROMPT)
        want = await whole.logits()
        await whole.close()
        branch = await ctx.branch(PROMPT[:6])
        cells = ctx.stats.cells_used
        for layer, after in ((0, 0), (1, 0), (1, 2)):  # the last one: in the third chunk of eight tokens
            await fail_at(ctx, layer, after)
            with pytest.raises(kv.StepFailed, match=f"layer {layer}"):
                await branch.extend(PROMPT[6:])
            assert branch.tokens == PROMPT[:6]
            assert ctx.stats.cells_used == cells
        await branch.extend(PROMPT[6:])
        assert (await branch.logits()).tobytes() == want.tobytes()


async def test_one_that_fills_the_context_leaves_the_others_a_true_prefix(folder: Path) -> None:
    async with kv.Context.open(folder, capacity=512, kv_dtype="fp32") as ctx:
        trunk = await ctx.branch(PROMPT)
        want = [await kid.generate(max_tokens=TOKENS) for kid in await _apart(trunk, 3)]
    async with kv.Context.open(folder, capacity=len(PROMPT) + 3 * 12, kv_dtype="fp32") as ctx:
        trunk = await ctx.branch(PROMPT)
        kids = await _apart(trunk, 3)
        outs = await kv.gather(*(kid.generate(max_tokens=TOKENS) for kid in kids))
        assert "context_full" in {out.finish_reason for out in outs}
        for kid, out, full in zip(kids, outs, want, strict=True):
            assert out.tokens == full.tokens[: len(out.tokens)]
            assert out.logprobs == full.logprobs[: len(out.tokens)]
            assert kid.tokens[-len(out.tokens) :] == out.tokens
        # Room again: the first goes on as if nothing had been.
        for kid in kids[1:]:
            await kid.close()
        rest = await kids[0].generate(max_tokens=TOKENS - len(outs[0].tokens))
        assert outs[0].tokens + rest.tokens == want[0].tokens[: len(outs[0].tokens) + len(rest.tokens)]


async def _apart(trunk: kv.Branch, n: int) -> list[kv.Branch]:
    kids = await trunk.fork(n)
    for index, kid in enumerate(kids):
        await kid.extend([200 + index])
    return kids
