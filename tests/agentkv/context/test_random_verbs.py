"""Random verbs on the branches of a small Context: they hold what an oracle says, and what a fresh Context computes.

Sessions differ in the kind of cache, its size and what it retains. The verbs are in `random_verbs.py`, the checks in
`verb_player.py`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

import agentkv as kv
from tests.conftest import FolderFactory
from tests.integration.test_bits import LATENTS, OTHER_CACHES, OTHER_MODELS, model_folder

from ..books import books_are_held  # noqa: F401 - a fixture
from ..random_verbs import VERBS
from ..verb_player import Player

pytestmark = pytest.mark.usefixtures("failing_caches", "books_are_held")

COMPARE_EVERY = 10
ENDS = ("full", "failed", "cancelled")


async def session(folder: Path, files: Path, seed: int, verbs: int, counts: Counter[str]) -> None:
    """So many verbs on one Context; counts how each ended, and the logits that were compared with a fresh Context's."""
    rng = random.Random(seed)
    kv_dtype = rng.choice(["fp32", "fp16", "int8", "int8/int4", "int4"])
    if folder.name.startswith(LATENTS) and kv_dtype.startswith("int"):
        kv_dtype = "bf16"  # latents are kept as floats
    capacity, retain = rng.choice([60, 150, 400]), rng.choice([None, None, 0, 40])

    def fresh() -> AbstractAsyncContextManager[kv.Context]:
        return kv.Context.open(folder, capacity, kv_dtype, threads=1)

    rows = rng.choice([8, 32, 512])
    async with kv.Context.open(folder, capacity, kv_dtype, max_batch_tokens=rows, threads=1, retain=retain) as ctx:
        player = Player(ctx, files, retain, seed)
        while player.played < verbs:
            try:
                counts[await player.turn()] += 1
                if player.played % COMPARE_EVERY == 0:
                    counts["logits"] += await player.compare(fresh)
            except Exception as error:
                error.add_note(f"verb {player.played} of seed {seed}: {player.last}")
                raise
        await ctx.keep()
        assert ctx.stats.cells_used == 0


def play(folder: Path, root: Path, seeds: range, verbs: int) -> Counter[str]:
    """A session for each seed."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        files = root / str(seed)
        files.mkdir()
        anyio.run(session, folder, files, seed, verbs, counts)
    logits = counts.pop("logits")
    counts = Counter({key: count for key, count in counts.items() if not key.endswith("nothing to do")})
    print(f"\n{counts.total()} verbs, {logits} logits compared:", dict(sorted(counts.items())))
    return counts


def test_branches_hold_what_the_oracle_says(folder: Path, tmp_path: Path) -> None:
    counts = play(folder, tmp_path, range(10), 100)
    for seed in itertools.count(1000):  # when one is cancelled is the clock's, so a run that tries too little goes on
        verbs = [counts[f"{verb} done"] > 0 for verb in VERBS if verb != "keep"]
        outcomes = [sum(counts[key] for key in counts if key.endswith(end)) > 3 for end in ENDS]
        if all(verbs + outcomes):
            break
        counts += play(folder, tmp_path, range(seed, seed + 1), 100)


@pytest.mark.parametrize("name", OTHER_CACHES)
def test_so_they_do_however_a_model_attends(tiny_exported_folder: FolderFactory, tmp_path: Path, name: str) -> None:
    counts = play(model_folder(tiny_exported_folder, name), tmp_path, range(50, 54), 60)
    assert counts.total() >= 200


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHER_MODELS)
def test_so_they_do_however_a_model_attends_for_long(
    tiny_exported_folder: FolderFactory, tmp_path: Path, name: str, soak_count: int
) -> None:
    play(model_folder(tiny_exported_folder, name), tmp_path, range(2000, 2000 + soak_count // 100), 500)


@pytest.mark.soak
def test_branches_hold_what_the_oracle_says_for_long(folder: Path, tmp_path: Path, soak_count: int) -> None:
    play(folder, tmp_path, range(1000, 1000 + soak_count // 100), 500)
