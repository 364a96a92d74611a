"""Prompts that begin with what is kept on disk: the same bits as computed ones, in every kind of cache."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv import trace
from tests.conftest import FolderFactory
from tests.integration.test_bits import OTHER_CACHES, model_folder
from tests.rows import one_in

from .opening import entries, files_in, goes_on, open_with, written

pytestmark = pytest.mark.anyio
one_loop = pytest.mark.parametrize("anyio_backend", ["asyncio"])

SYSTEM = [3 + i * 11 % 290 for i in range(700)]
ASK = [[200 + number, *range(40, 70)] for number in range(8)]
DTYPES = ["fp32", "fp16", "bf16", "int8", "int8/int4", "int4"]


async def said(model: Path, folder: Path | None, prompt: list[int], **options: Any) -> tuple[tuple[Any, ...], kv.Stats]:
    """What a Context of its own says to a prompt, and its counters when that was computed."""
    async with open_with(model, folder, **options) as ctx:
        branch = await ctx.branch(prompt)
        stats = ctx.stats
        if folder is not None:
            await written(ctx)
        return await goes_on(branch), stats


async def check_bits(model: Path, folder: Path, **options: Any) -> None:
    """Two prompts begin alike, so that the third reads; all say what Contexts without a folder say."""
    for number, read in enumerate((0, 0, 1)):
        got, stats = await said(model, folder, SYSTEM + ASK[number], **options)
        want, _ = await said(model, None, SYSTEM + ASK[number], **options)
        assert got == want
        assert stats.prefix_cache_hits == read
    assert stats.prefix_cache_tokens == stats.reused
    assert 640 <= stats.reused <= 700
    assert stats.prefilled == len(SYSTEM) + len(ASK[2]) - stats.reused
    assert stats.prefix_cache_bytes == entries(folder)[-1].stat().st_size


@pytest.mark.parametrize("kv_dtype", one_in(3, DTYPES))
async def test_prompts_read_what_two_began_with(
    tiny_exported_folder: FolderFactory, tmp_path: Path, kv_dtype: str
) -> None:
    await check_bits(tiny_exported_folder("llama"), tmp_path, kv_dtype=kv_dtype)


@pytest.mark.parametrize("name", OTHER_CACHES)
@one_loop
async def test_so_they_do_however_a_model_attends(
    tiny_exported_folder: FolderFactory, tmp_path: Path, name: str
) -> None:
    await check_bits(model_folder(tiny_exported_folder, name), tmp_path)


@pytest.mark.parametrize("name", ["gemma3-none", "lfm2-8da4w"])
@one_loop
async def test_entries_of_layers_with_windows_or_states_serve_whole(
    tiny_exported_folder: FolderFactory, tmp_path: Path, name: str
) -> None:
    """A prompt that parts from an entry is computed, and what it has in common with others is an entry of its own."""
    model = model_folder(tiny_exported_folder, name)
    early = SYSTEM[:500]
    for prompt, tokens in [
        (SYSTEM, 0),
        (SYSTEM, 0),
        (early + ASK[1], 0),
        (early + ASK[2], 448),
        (SYSTEM + ASK[1], 640),
    ]:
        got, stats = await said(model, tmp_path, prompt)
        assert stats.prefix_cache_tokens == stats.reused == tokens
        assert got == (await said(model, None, prompt))[0]
    assert len(entries(tmp_path)) == 2


@pytest.mark.parametrize("name", ["gemma3-none", "lfm2-8da4w"])
@one_loop
async def test_only_what_can_be_gone_on_from_is_written(
    tiny_exported_folder: FolderFactory, tmp_path: Path, name: str
) -> None:
    """The second prompt goes on from where both part, which is within a block: at its end nothing is left."""
    model = model_folder(tiny_exported_folder, name)
    async with open_with(model, tmp_path) as ctx:
        for ask in ASK[:3]:
            await ctx.branch(SYSTEM + ask)
            await written(ctx)
        assert ctx.stats.reused == 2 * len(SYSTEM)
    assert entries(tmp_path) == []
    for tokens in (0, 640):
        _, stats = await said(model, tmp_path, SYSTEM + ASK[3])
        assert stats.prefix_cache_tokens == tokens


@one_loop
async def test_pages_of_the_file_become_cells(tmp_path: Path) -> None:
    model = kv.models.nano()
    for number in range(2):
        await said(model, tmp_path, SYSTEM + ASK[number])
    async with open_with(model, tmp_path) as ctx:
        branch = await ctx.branch(SYSTEM + ASK[2])
        assert branch.reused == ctx.stats.prefix_cache_tokens
        assert ctx.stats.kv_bytes_shared > 0.6 * ctx.stats.prefix_cache_bytes


@one_loop
async def test_what_was_read_serves_whoever_begins_alike(tmp_path: Path) -> None:
    model = kv.models.nano()
    for number in range(2):
        await said(model, tmp_path, SYSTEM + ASK[number])
    async with open_with(model, tmp_path) as ctx:
        branches = await kv.gather(*(ctx.branch(SYSTEM + ask) for ask in ASK))
        assert ctx.stats.prefix_cache_hits == 1
        assert all(branch.reused >= 640 for branch in branches)
        got = [await goes_on(branch) for branch in branches]
        for branch in branches:
            await branch.close()
        again = await ctx.branch(SYSTEM + ASK[0])
        assert (again.reused, ctx.stats.prefix_cache_hits) == (len(SYSTEM + ASK[0]) - 1, 1)
    async with open_with(model, None) as ctx:
        assert got == [await goes_on(await ctx.branch(SYSTEM + ask)) for ask in ASK]


@pytest.mark.parametrize("strategy", [kv.spec.Eagle(), kv.spec.Suffix(), kv.spec.DraftModel(kv.models.nano())], ids=str)
@one_loop
async def test_drafters_make_do_with_what_they_have_not_seen(tmp_path: Path, strategy: kv.spec.Eagle) -> None:
    model = kv.models.nano()
    for number in range(2):
        await said(model, tmp_path, SYSTEM + ASK[number], speculative=strategy)
    got, stats = await said(model, tmp_path, SYSTEM + ASK[2], speculative=strategy)
    assert stats.prefix_cache_hits == 1
    assert got == (await said(model, None, SYSTEM + ASK[2]))[0]
    async with open_with(model, tmp_path, speculative=strategy) as ctx:  # one that was there, and one that is read
        first = await ctx.branch(SYSTEM[:300])
        second = await ctx.branch(SYSTEM + ASK[2])
        assert (first.reused, second.reused, ctx.stats.prefix_cache_hits) == (299, 640, 2)
        assert (await goes_on(second))[:3] == got[:3]


@one_loop
async def test_an_agents_prompt_is_kept_at_once(tmp_path: Path) -> None:
    agent = kv.Agent("You are Nano, a desk agent. " * 60)
    runs = []
    for hits in (0, 1):
        async with open_with(kv.models.nano(), tmp_path) as ctx:
            trunk = await agent.trunk(ctx)
            await written(ctx)
            assert ctx.stats.prefix_cache_hits == hits
            runs.append((await agent.run(await trunk.fork(), "Who are you?")).output)
    assert runs[0] == runs[1]


@one_loop
async def test_entries_contain_each_other_once(tmp_path: Path) -> None:
    """A longer entry takes the place of a shorter one; one that parts from it stays beside it."""
    model, longer = kv.models.nano(), SYSTEM + [9 + i * 7 % 270 for i in range(600)]
    for prompt in (SYSTEM, SYSTEM, longer, longer):
        await said(model, tmp_path, prompt)
    assert len(entries(tmp_path)) == 1
    _, stats = await said(model, tmp_path, SYSTEM)
    assert stats.prefix_cache_tokens == len(SYSTEM) - 1
    other = SYSTEM[:300] + longer[700:]
    for tokens in (300, 300, 896 - 0):
        _, stats = await said(model, tmp_path, other)
        assert stats.prefix_cache_tokens >= min(tokens, len(other) - 64)
    assert len(entries(tmp_path)) == 2


@one_loop
async def test_a_growing_conversation_is_not_written_at_each_turn(tmp_path: Path) -> None:
    wrote = 0
    for length in range(700, 1400, 35):
        prompt = [5 + i * 13 % 280 for i in range(length)]
        async with open_with(kv.models.nano(), tmp_path) as ctx:
            await ctx.branch(prompt)
            await written(ctx)
            wrote += ctx.stats.prefix_cache_written
    assert 2 <= wrote <= 4
    assert len(entries(tmp_path)) == 1


@one_loop
async def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    before = os.umask(0)
    try:
        for number in range(2):
            await said(kv.models.nano(), folder, SYSTEM + ASK[number])
    finally:
        os.umask(before)
    assert len(entries(folder)) == 1
    for path in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@one_loop
async def test_caches_of_other_kinds_keep_their_own(tmp_path: Path, tiny_exported_folder: FolderFactory) -> None:
    kinds: list[dict[str, Any]] = [{"kv_dtype": "fp16"}, {"kv_dtype": "fp32"}, {"window": 2048, "sinks": 4}]
    for number in range(2):
        for kind in kinds:
            _, stats = await said(kv.models.nano(), tmp_path, SYSTEM + ASK[number], **kind)
            assert stats.prefix_cache_hits == 0
    assert len(entries(tmp_path)) == len({path.parent for path in entries(tmp_path)}) == len(kinds)
    for kind in kinds:
        got, stats = await said(kv.models.nano(), tmp_path, SYSTEM + ASK[3], **kind)
        assert stats.prefix_cache_hits == 1
        assert got == (await said(kv.models.nano(), None, SYSTEM + ASK[3], **kind))[0]


@one_loop
async def test_a_prompt_longer_than_its_window_is_computed(tmp_path: Path) -> None:
    for number in range(3):
        got, stats = await said(kv.models.nano(), tmp_path, SYSTEM + ASK[number], window=300)
        assert (stats.prefix_cache_hits, entries(tmp_path)) == (0, [])
        assert got == (await said(kv.models.nano(), None, SYSTEM + ASK[number], window=300))[0]


@one_loop
async def test_short_prompts_are_computed(tmp_path: Path) -> None:
    for _ in range(3):
        _, stats = await said(kv.models.nano(), tmp_path, SYSTEM[:256])
        assert stats.prefix_cache_hits == 0
    assert entries(tmp_path) == []


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no path": ({"prefix_cache": 3}, "prefix_cache is int 3"),
    "no folder": ({"prefix_cache": __file__}, "prefix_cache is .*File exists"),
    "below a file": ({"prefix_cache": f"{__file__}/below"}, "prefix_cache is .*Not a directory"),
    "no count": ({"prefix_cache_bytes": "1 GB"}, "prefix_cache_bytes is str '1 GB'"),
    "too few": ({"prefix_cache_bytes": 1000}, "prefix_cache_bytes"),
    "codes that depend on lengths": ({"prefix_cache": "here", "quantize_after": 64}, "leave one of the two out"),
}


@one_loop
async def test_a_recording_of_prompts_that_were_read_is_replayed(tmp_path: Path) -> None:
    for number in range(2):
        await said(kv.models.nano(), tmp_path / "folder", SYSTEM + ASK[number])
    async with (
        open_with(kv.models.nano(), tmp_path / "folder") as ctx,
        trace.record(ctx, tmp_path / "recording"),
    ):
        branches = await kv.gather(*(ctx.branch(SYSTEM + ask) for ask in ASK[:3]), ctx.branch([5, 6, 7]))
        for branch in branches:
            await branch.generate(max_tokens=8, sampling=kv.Sampling(temperature=1.0, seed=3))
        assert ctx.stats.prefix_cache_hits == 1
    replayed = await trace.replay(tmp_path / "recording")
    assert replayed.same, replayed
    assert replayed.tokens == 32


@pytest.mark.parametrize("name", BAD_OPTIONS)
async def test_bad_options_are_refused_when_the_context_opens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, message = BAD_OPTIONS[name]
    with pytest.raises(kv.InvalidInput, match=message):
        async with kv.Context.open(kv.models.nano(), **options):
            raise AssertionError("it opened")
    assert files_in(tmp_path) == []


@one_loop
async def test_no_option_no_counts(tmp_path: Path) -> None:
    _, stats = await said(kv.models.nano(), None, SYSTEM)
    assert (stats.prefix_cache_hits, stats.prefix_cache_written) == (0, 0)


@one_loop
async def test_leaving_the_context_ends_what_is_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv._prefixes.write.SLICE_BYTES", 1)  # a cell at a time
    with caplog.at_level(logging.WARNING, "agentkv"):
        for _ in range(2):
            async with open_with(kv.models.nano(), tmp_path) as ctx:
                await ctx.branch(SYSTEM)
    assert [path.name for path in files_in(tmp_path)] == ["seen"]
    assert caplog.records == []
