"""Agents of one Context, each under a LoRA adapter of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from tests.agentkv.journal.crashes import QUESTION, Crash, call, left_by, only_left, opened

pytestmark = pytest.mark.anyio
AGENT = kv.Agent("You are Nano.", max_message_tokens=6)


@pytest.fixture(scope="module")
def model(tiny_exported_folder: Callable[..., Path]) -> Path:
    return tiny_exported_folder("llama", quant="q8")


@asynccontextmanager
async def desk(model: Path, adapter_folders: list[Path]) -> AsyncIterator[tuple[kv.Context, list[kv.Adapter | None]]]:
    """A Context, and its adapters after None."""
    async with kv.Context.open(model, capacity=2048, threads=1) as ctx:
        yield ctx, [None, *[await ctx.adapter(folder) for folder in adapter_folders]]


async def test_a_trunk_is_computed_once_under_each_adapter(model: Path, adapter_folders: list[Path]) -> None:
    async with desk(model, adapter_folders) as (ctx, adapters):
        for adapter in adapters:
            first = await AGENT.trunk(ctx, adapter=adapter)
            prefilled = ctx.stats.prefilled
            again = await AGENT.trunk(ctx, adapter=adapter)
            assert ctx.stats.prefilled == prefilled
            assert first.adapter is again.adapter is adapter
            assert first.tokens == again.tokens
            alone = await ctx.branch(first.tokens, adapter=adapter)
            assert (await alone.logits()).tobytes() == (await first.logits()).tobytes()


async def test_agents_under_their_adapters_share_forwards_and_say_what_each_says_alone(
    model: Path, adapter_folders: list[Path]
) -> None:
    async def said(trunk: kv.Branch) -> list[int]:
        branch = await trunk.fork()
        await branch.extend([{"role": "user", "content": QUESTION}])
        return (await branch.generate(max_tokens=6)).tokens

    async with desk(model, adapter_folders) as (ctx, adapters):
        trunks = [await AGENT.trunk(ctx, adapter=adapter) for adapter in adapters]
        alone = [await said(trunk) for trunk in trunks]
        steps = ctx.stats.steps
        assert await kv.gather(*[said(trunk) for trunk in trunks]) == alone
        assert ctx.stats.steps - steps < 3 * 6
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


async def test_an_adapter_of_another_context_opens_no_trunk(model: Path, adapter_folders: list[Path]) -> None:
    async with (
        desk(model, adapter_folders[:1]) as (ctx, _),
        desk(model, adapter_folders[:1]) as (_other, (_none, foreign)),
    ):
        for wrong, said in ((foreign, "loaded in another Context"), ("sql", "it takes what")):
            with pytest.raises(kv.AdapterError, match=said):
                await AGENT.trunk(ctx, adapter=wrong)  # type: ignore[arg-type]
        assert ctx.branches == []


async def test_keep_frees_the_trunks_of_all_adapters(model: Path, adapter_folders: list[Path]) -> None:
    async with desk(model, adapter_folders) as (ctx, adapters):
        for adapter in adapters:
            (await AGENT.trunk(ctx, adapter=adapter)).close()
        await ctx.keep()
        assert ctx.stats.branches == 0


async def test_a_turn_goes_on_in_another_process_under_its_adapter(
    model: Path, adapter_folders: list[Path], tmp_path: Path
) -> None:
    """What the model would draw behind its call is the same, and needs the same adapter to be loaded."""
    crash, seen = Crash(tmp_path / "runs.db", "look a"), []

    async def look(context: kv.RunContext[Any], record: kv.CallRecord) -> None:
        async with await context.branch.fork() as fork:
            seen.append((record.name, fork.adapter and fork.adapter.name, (await fork.logits()).tobytes()))

    def agent_of(crash: Crash) -> kv.Agent[None, str]:
        return kv.Agent("You are Nano.", tools=[crash.tool("look", idempotent=True)], after_call=look)

    options: dict[str, Any] = {"model": model, "call_format": "hermes"}
    script = [call("look", what="a"), "It is 3."]
    async with opened(script, crash.path, **options) as (ctx, _):
        agent = agent_of(crash)
        whole = await agent.run(await agent.trunk(ctx, adapter=await ctx.adapter(adapter_folders[1])), QUESTION)
    agent = agent_of(Crash(crash.crashed))
    async with opened(script[1:], crash.crashed, **options) as (ctx, journal):
        with pytest.raises(kv.SnapshotMismatch, match="not loaded here"):
            await (await only_left(journal, ctx)).resume(agent)
        assert ctx.branches == []
        for folder in adapter_folders:  # in another order
            await ctx.adapter(folder)
        run = await (await only_left(journal, ctx)).resume(agent)
        assert await left_by(journal, ctx) == []
    assert run.messages == whole.messages
    first, second = seen
    assert first == second
    assert first[:2] == ("look", "adapter1")
