"""LoRA adapters of branches: who has which, what is shared, and that neighbours change nothing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv._context.adapters import keep_adapter
from agentkv._context.handle import core_of
from agentkv.trace import record, replay
from tests.adapters import gguf_tensors, random_adapter, random_matrices, write_gguf

pytestmark = pytest.mark.anyio
PROMPT = list(range(20, 60))
N = 3

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tiny_exported_folder: Callable[..., Path]) -> Path:
    return tiny_exported_folder("llama", quant="q8")


@asynccontextmanager
async def opened(
    model: Path, adapter_folders: list[Path], **options: Any
) -> AsyncIterator[tuple[kv.Context, list[Any]]]:
    """A Context, and its adapters after None."""
    async with kv.Context.open(model, **{"capacity": 1024} | options) as ctx:
        yield ctx, [None, *[await ctx.adapter(folder) for folder in adapter_folders]]


async def tokens_of(branch: kv.Branch, n: int = 8) -> list[int]:
    return (await branch.generate(max_tokens=n)).tokens


async def test_each_adapter_says_something_else(model: Path, adapter_folders: list[Path]) -> None:
    async with opened(model, adapter_folders) as (ctx, adapters):
        said = [tuple(await tokens_of(await ctx.branch(PROMPT, adapter=adapter))) for adapter in adapters]
    assert len(set(said)) == N + 1


async def test_what_an_adapter_is(model: Path, adapter_folders: list[Path]) -> None:
    async with opened(model, adapter_folders[:1]) as (ctx, (_, adapter)):
        assert (adapter.name, adapter.rank, len(adapter.modules)) == ("adapter0", 4, 14)
        assert "model.layers.1.mlp.down_proj" in adapter.modules
        assert adapter.nbytes > 0
        assert await ctx.adapter(adapter_folders[0], name="another") is adapter  # one that is loaded already
        assert (await ctx.adapter(adapter_folders[1], name="other")).name == "other"


async def test_a_gguf_file_is_the_same_adapter(model: Path, adapter_folders: list[Path], tmp_path: Path) -> None:
    tensors = gguf_tensors(random_matrices(model, 0), head_dim=16)
    file, other = write_gguf(tmp_path / "sql.gguf", tensors), write_gguf(tmp_path / "own.gguf", tensors, "qwen2")
    async with opened(model, adapter_folders[:1]) as (ctx, (_, adapter)):
        assert await ctx.adapter(file) is adapter
        assert (await ctx.adapter(other)).name == "own"  # whose queries are in another order
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(file.read_bytes()[:-64])
        with pytest.raises(kv.AdapterError, match="damaged"):
            await ctx.adapter(cut)
        with pytest.raises(kv.AdapterError, match=r"is no LoRA adapter: general\.type is"):
            await ctx.adapter(write_gguf(tmp_path / "model.gguf", tensors, general__type="model"))
        assert len(core_of(ctx).adapters) == 2


async def test_forks_inherit_and_cells_are_shared_under_one_adapter_alone(
    model: Path, adapter_folders: list[Path]
) -> None:
    async with opened(model, adapter_folders) as (ctx, adapters):
        for adapter in adapters:
            trunk = await ctx.branch(PROMPT, adapter=adapter)
            assert (trunk.reused, trunk.adapter) == (0, adapter)
            child = await trunk.fork()
            assert child.adapter is adapter
            assert (await ctx.branch(PROMPT, adapter=adapter)).reused == len(PROMPT) - 1
            trunk.close()
            child.close()
        await ctx.keep()
        again = [await ctx.branch(PROMPT, adapter=adapter) for adapter in adapters]
        assert [branch.reused for branch in again] == [len(PROMPT) - 1] * (N + 1)  # what each has left


async def test_neighbours_change_no_bit(model: Path, adapter_folders: list[Path]) -> None:
    async with opened(model, adapter_folders, retain=0) as (ctx, adapters):
        alone = {}
        for adapter in adapters:
            branch = await ctx.branch(PROMPT, adapter=adapter)
            await branch.generate(max_tokens=8)
            alone[adapter] = await branch.logits()
            branch.close()
        branches = [await ctx.branch(PROMPT, adapter=adapter) for adapter in adapters * 2]
        await kv.gather(*[branch.generate(max_tokens=8) for branch in branches])
        for branch in branches:
            assert (await branch.logits()).tobytes() == alone[branch.adapter].tobytes()


async def test_an_adapter_holds_from_the_present_end_on(model: Path, adapter_folders: list[Path]) -> None:
    async with opened(model, adapter_folders) as (ctx, (_, one, two, _three)):
        branch = await ctx.branch(PROMPT)
        mark = branch.mark()
        branch.adapter = one
        assert branch.adapter is one
        await branch.extend([7, 8, 9])
        before_two = branch.mark()
        branch.adapter = two
        assert await tokens_of(branch)
        await branch.rollback(before_two)
        assert branch.adapter is two  # as the next token had
        await branch.rollback(len(PROMPT) + 2)
        assert branch.adapter is one
        await branch.rollback(mark)
        assert branch.adapter is one
        await branch.rollback(5)
        assert branch.adapter is None
        branch.adapter = one
        branch.adapter = None
        assert branch.adapter is None
        assert await tokens_of(branch) == await tokens_of(await ctx.branch(PROMPT[:5]))


async def test_a_busy_branch_keeps_its_adapter(model: Path, adapter_folders: list[Path]) -> None:
    async with opened(model, adapter_folders) as (ctx, (_, one, *_rest)):
        branch = await ctx.branch(PROMPT)
        async with branch.stream(max_tokens=8) as tokens:
            async for _ in tokens:
                with pytest.raises(kv.BranchBusy, match="runs something"):
                    branch.adapter = one
        assert branch.adapter is None
        branch.adapter = one
        branch.close()
        with pytest.raises(kv.BranchClosed):
            branch.adapter = None


async def test_what_is_no_adapter_of_the_context_is_refused(model: Path, adapter_folders: list[Path]) -> None:
    async with (
        opened(model, adapter_folders[:1]) as (ctx, _),
        opened(model, adapter_folders[:1]) as (_other, (_none, foreign)),
    ):
        branch = await ctx.branch(PROMPT)
        for wrong, said in ((foreign, "loaded in another Context"), ("folder", "it takes what")):
            with pytest.raises(kv.AdapterError, match=said):
                branch.adapter = wrong  # type: ignore[assignment]
            with pytest.raises(kv.AdapterError, match=said):
                await ctx.branch(PROMPT, adapter=wrong)  # type: ignore[arg-type]
        assert branch.adapter is None
        assert len(ctx.branches) == 1


@pytest.mark.parametrize(
    ("quant", "said"), [("none", "beside quantised weights"), (None, "exported before adapters could run")]
)
async def test_models_that_take_no_adapter_say_so(
    adapter_folders: list[Path], tiny_exported_folder: Callable[..., Path], quant: str | None, said: str
) -> None:
    path = kv.models.nano() if quant is None else tiny_exported_folder("llama", quant=quant)
    async with kv.Context.open(path, capacity=64) as ctx:
        with pytest.raises(kv.AdapterError, match=said):
            await ctx.adapter(adapter_folders[0])


async def test_an_adapter_of_another_model_is_refused(
    model: Path, tmp_path: Path, tiny_exported_folder: Callable[..., Path]
) -> None:
    other = tiny_exported_folder("llama", quant="q8", hidden=96, heads=3, kv_heads=1, head_dim=32)
    folder = random_adapter(other, tmp_path / "a", seed=0)
    async with kv.Context.open(model, capacity=64) as ctx:
        with pytest.raises(kv.AdapterError, match="of another model"):
            await ctx.adapter(folder)
        with pytest.raises(kv.AdapterError, match="no adapter"):
            await ctx.adapter(tmp_path)
        with pytest.raises(kv.AdapterError, match="no such folder"):
            await ctx.adapter(tmp_path / "none")
        with pytest.raises(kv.InvalidInput):
            await ctx.adapter(7)  # type: ignore[arg-type]


async def test_a_saved_branch_asks_for_its_adapters(model: Path, adapter_folders: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "branch.akv"
    async with opened(model, adapter_folders) as (ctx, (_, one, two, _three)):
        branch = await ctx.branch(PROMPT, adapter=one)
        branch.adapter = two
        await branch.extend([3, 4, 5])
        await branch.save(path)
        said = await tokens_of(branch)
        loaded = await ctx.load(path)
        assert (loaded.adapter, loaded.loaded and loaded.loaded.recomputed) == (two, 0)
        assert await tokens_of(loaded) == said
    async with kv.Context.open(model, capacity=256) as ctx:
        with pytest.raises(kv.SnapshotMismatch, match="not loaded here"):
            await ctx.load(path)
        for folder in adapter_folders[1::-1]:  # in another order
            await ctx.adapter(folder)
        loaded = await ctx.load(path)
        assert loaded.adapter is not None
        assert loaded.adapter.name == "adapter1"
        assert await tokens_of(loaded) == said
    async with kv.Context.open(model, capacity=256, kv_dtype="fp32") as ctx:  # cells of another kind: fed again
        for folder in adapter_folders[:2]:
            await ctx.adapter(folder)
        loaded = await ctx.load(path, recompute=True)
        assert loaded.adapter is not None
        assert loaded.adapter.name == "adapter1"
        again = await ctx.branch(PROMPT, adapter=await ctx.adapter(adapter_folders[0]))
        again.adapter = loaded.adapter
        await again.extend([3, 4, 5])
        assert (await loaded.logits()).tobytes() == (await again.logits()).tobytes()


async def test_a_branch_of_another_model_says_so_before_its_adapters(
    model: Path, adapter_folders: list[Path], tmp_path: Path, tiny_exported_folder: Callable[..., Path]
) -> None:
    async with opened(model, adapter_folders) as (ctx, (_, one, *_rest)):
        await (await ctx.branch(PROMPT, adapter=one)).save(tmp_path / "branch.akv")
    other = tiny_exported_folder("llama", quant="q8", hidden=96, heads=3, kv_heads=1, head_dim=32)
    async with kv.Context.open(other, capacity=256) as ctx:
        with pytest.raises(kv.SnapshotMismatch, match="another model"):
            await ctx.load(tmp_path / "branch.akv")


async def test_a_file_without_adapters_is_as_before(model: Path, tmp_path: Path) -> None:
    async with kv.Context.open(model, capacity=256) as ctx:
        await (await ctx.branch(PROMPT)).save(tmp_path / "branch.akv")
    assert b'"adapters"' not in (tmp_path / "branch.akv").read_bytes()


async def test_prompts_under_an_adapter_are_not_in_the_prefix_cache(
    model: Path, adapter_folders: list[Path], tmp_path: Path
) -> None:
    prompt = [3 + i % 300 for i in range(600)]
    async with opened(model, adapter_folders[:1], prefix_cache=tmp_path, capacity=4096) as (ctx, (_, one)):
        for _ in range(3):
            (await ctx.branch(prompt, adapter=one)).close()
        said = await tokens_of(await ctx.branch(prompt, adapter=one))
    async with opened(model, adapter_folders[:1], prefix_cache=tmp_path, capacity=4096) as (ctx, (_, one)):
        branch = await ctx.branch(prompt, adapter=one)
        assert branch.reused == 0
        assert await tokens_of(branch) == said


async def test_a_rewritten_conversation_keeps_its_adapter(model: Path, adapter_folders: list[Path]) -> None:
    async with opened(model, adapter_folders[:1]) as (ctx, (_, one)):
        branch = await ctx.branch([{"role": "user", "content": "Hello"}], adapter=one)
        await branch.generate(max_tokens=4)
        await branch.extend([{"role": "user", "content": "And now?"}])
        assert branch.adapter is one


async def test_a_rollback_for_a_rewrite_keeps_the_adapter(model: Path, adapter_folders: list[Path]) -> None:
    async with opened(model, adapter_folders[:1]) as (ctx, (_, one)):
        branch = await ctx.branch(PROMPT)
        branch.adapter = one

        def rewritten(engine: Any) -> tuple[int, int]:
            engine.rollback(branch.id, 10)
            plain = engine.adapter(branch.id)
            keep_adapter(engine, branch.id, one.id)
            return plain, engine.adapter(branch.id)

        assert await core_of(ctx).loop.call(rewritten) == (0, one.id)
        assert branch.adapter is one


async def test_a_trace_with_adapters_is_not_replayed(model: Path, adapter_folders: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    async with opened(model, adapter_folders[:1]) as (ctx, (_, one)), record(ctx, path):
        await tokens_of(await ctx.branch(PROMPT, adapter=one))
    with pytest.raises(kv.TraceError, match="adapter0 from token 0 on"):
        await replay(path)


async def test_offloaded_branches_come_back_under_their_adapters(model: Path, adapter_folders: list[Path]) -> None:
    async with opened(model, adapter_folders) as (ctx, adapters):
        branches = [await ctx.branch(PROMPT, adapter=adapter) for adapter in adapters]
        want = [await tokens_of(await branch.fork()) for branch in branches]
        for branch in branches:
            await branch.offload()
        assert [branch.adapter for branch in branches] == adapters
        assert [await tokens_of(branch) for branch in branches] == want


@pytest.mark.parametrize("seed", range(3))
async def test_random_verbs_give_each_branch_what_it_has_alone(
    model: Path, adapter_folders: list[Path], seed: int
) -> None:
    """Each branch beside a list of (token, adapter), from which a lone branch is made at the end."""
    rng = random.Random(seed)
    async with opened(model, adapter_folders, capacity=4096) as (ctx, adapters):
        live: list[tuple[kv.Branch, list[tuple[int, Any]]]] = []

        def told(at: int) -> None:
            branch, known = live[at]
            known += [(token, branch.adapter) for token in branch.tokens[len(known) :]]

        for _ in range(60):
            if not live or (len(live) < 8 and rng.random() < 0.3):
                adapter = rng.choice(adapters)
                live.append((await ctx.branch(PROMPT[: rng.randint(4, 40)], adapter=adapter), []))
                told(-1)
                continue
            at = rng.randrange(len(live))
            branch, known = live[at]
            match rng.choice(["adapter", "extend", "generate", "fork", "rollback", "adopt", "close"]):
                case "adapter":
                    branch.adapter = rng.choice(adapters)
                case "extend":
                    await branch.extend([rng.randrange(3, 384) for _ in range(rng.randint(1, 12))])
                    told(at)
                case "generate":
                    await kv.gather(*[each.generate(max_tokens=rng.randint(1, 6)) for each, _ in live])
                    for i in range(len(live)):
                        told(i)
                case "fork":
                    live.append((await branch.fork(), list(known)))
                case "rollback":
                    length = rng.randint(1, len(branch))
                    await branch.rollback(length)
                    del known[length:]
                case "adopt":
                    other, of_other = rng.choice(live)
                    await branch.adopt(other)
                    known[:] = list(of_other)
                case "close":
                    branch.close()
                    del live[at]
        for branch, known in live:
            assert [token for token, _ in known] == branch.tokens
            async with kv.Context.open(model, capacity=512) as lone:
                own: dict[str, Any] = {}
                for folder in adapter_folders:
                    loaded = await lone.adapter(folder)
                    own[loaded.digest] = loaded
                alone = await lone.branch()
                for token, adapter in known:
                    alone.adapter = None if adapter is None else own[adapter.digest]
                    await alone.extend([token])
                assert (await alone.logits()).tobytes() == (await branch.logits()).tobytes()
