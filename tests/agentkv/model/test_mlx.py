"""Contexts on MLX: the same SDK, opened and closed from anywhere at any time, with nothing left behind."""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from agentkv_runtime.backends import load_backend

import agentkv as kv
from tests.conftest import FolderFactory
from tests.export_cache import ExportCache
from tests.faults import fail_at
from tests.runtime.draft_heads import head_weights, write_head
from tests.waiting import until_sync

from ..conftest import loop_threads

load_backend("mlx")

from agentkv_runtime import _mlx  # noqa: E402

pytestmark = pytest.mark.usefixtures("failing_caches")

PROMPT = list(range(30, 50))
THREADS, CYCLES = 4, 200
MAX_GROWTH = 8 << 20  # of 100 cycles; each maps weights of some 300 kB and makes an engine, a cache and two event loops
Case = tuple[Path, str]
Made = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def cases(tiny_exported_folder: FolderFactory) -> list[Case]:
    folders = [tiny_exported_folder(kind, backend="mlx") for kind in ("llama", "qwen3", "gemma3")]
    return [(folder, kv_dtype) for folder in folders for kv_dtype in ("fp32", "fp16")]


async def one_cycle(folder: Path, kv_dtype: str, fails_at: int | None = None) -> Made:
    """A Context from opening to closing: a prefill, a fork, and two branches that generate at once.

    With `fails_at` the second forward of both fails before that layer is written.
    """
    async with kv.Context.open(folder, capacity=256, kv_dtype=kv_dtype) as ctx:
        assert ctx.model_info.backend == "mlx"
        trunk = await ctx.branch(PROMPT)
        kid = await trunk.fork()
        await kid.extend([7])
        if fails_at is not None:
            await fail_at(ctx, fails_at, after=1)
        first, second = await kv.gather(trunk.generate(max_tokens=4), kid.generate(max_tokens=4))
        assert (ctx.stats.retries > 0) == (fails_at is not None)
        return first.tokens, second.tokens


@pytest.mark.parametrize("layer", [0, 1])
def test_a_failed_forward_is_made_good(cases: list[Case], layer: int) -> None:
    for case in cases:
        assert anyio.run(one_cycle, *case, layer) == anyio.run(one_cycle, *case)


async def story(folder: Path, speculative: Any, kv_dtype: str) -> tuple[list[list[int]], int]:
    """Greedy answers of three branches, and how many drafted tokens were accepted."""
    async with kv.Context.open(folder, capacity=512, kv_dtype=kv_dtype, speculative=speculative) as ctx:
        trunk = await ctx.branch([*PROMPT, *PROMPT])
        kids = await trunk.fork(3)
        for index, kid in enumerate(kids):
            await kid.extend([index + 40])
        outs = await kv.gather(*(kid.generate(max_tokens=24) for kid in kids))
        return [out.tokens for out in outs], ctx.stats.accepted


@pytest.fixture(scope="module")
def drafted_folder(
    tiny_hf_folder: FolderFactory, export_cache: ExportCache, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model that gives out features, and beside it a draft head of random weights, which runs on the CPU."""

    def export(out: Path) -> None:
        from agentkv_runtime.export import export_draft, export_folder

        source = tiny_hf_folder("llama", head_dim=32)
        export_folder(source, out, backend="mlx", quant="none", max_tokens=64, max_logits=64, features=True)
        head = write_head(tmp_path_factory.mktemp("head"), head_weights(draft_vocab=128))
        export_draft(head, source, out, max_tokens=64, max_logits=64)

    return export_cache.get("drafted-mlx", export)


@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
def test_drafts_change_no_output(drafted_folder: Path, kv_dtype: str) -> None:
    want, _ = anyio.run(story, drafted_folder, None, kv_dtype)
    lookup, suffix, model, head = (
        anyio.run(story, drafted_folder, strategy, kv_dtype)
        for strategy in (
            kv.spec.PromptLookup(adaptive=False),
            kv.spec.Suffix(adaptive=False),
            kv.spec.DraftModel(drafted_folder, adaptive=False),
            kv.spec.Eagle(adaptive=False),
        )
    )
    assert [lookup[0], suffix[0], model[0], head[0]] == [want] * 4
    assert model[1] > 0


def run_cycles(cases: list[Case], want: dict[Case, Made], n_cycles: int) -> Counter[str]:
    """That many cycles, on THREADS threads at once; how many of them ran on each event loop."""
    ran: Counter[str] = Counter()
    failures: list[str] = []

    def work(index: int) -> None:
        for cycle in range(n_cycles // THREADS):
            case = cases[(index * 7 + cycle) % len(cases)]
            loop = ("asyncio", "trio")[(index + cycle) % 2]
            try:
                made = anyio.run(one_cycle, *case, backend=loop)
                if made != want[case]:
                    failures.append(f"{case}: {made}, not {want[case]}")
            except BaseException as error:
                failures.append(f"{case}: {error!r}")
            ran[loop] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    gc.collect()
    return ran


def resident() -> int:
    """Bytes of this process in memory; 0 where that cannot be told."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def native_threads() -> int:
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else threading.active_count()


def test_contexts_come_and_go_on_threads_and_event_loops(cases: list[Case]) -> None:
    want = {case: anyio.run(one_cycle, *case) for case in cases}
    gc.collect()
    memory, threads = _mlx.active_memory(), native_threads()
    ran = run_cycles(cases, want, CYCLES // 2)
    before = resident()
    ran += run_cycles(cases, want, CYCLES // 2)
    grown = resident() - before
    assert ran == {"asyncio": CYCLES // 2, "trio": CYCLES // 2}
    # Fewer where something of an earlier test ended meanwhile.
    assert _mlx.active_memory() <= memory
    until_sync(lambda: native_threads() <= threads)  # trio keeps a worker for some seconds after its last work
    assert loop_threads() == []
    print(f"\n{CYCLES} contexts on {THREADS} threads; the second {CYCLES // 2} grew the process by {grown >> 10} kB")
    assert grown < MAX_GROWTH
