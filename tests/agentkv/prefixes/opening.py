"""Contexts with a prefix cache, one after another as processes would open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agentkv as kv
from agentkv._context.handle import core_of
from tests.waiting import until


def open_with(model: Path, folder: Path | None, capacity: int = 4096, **options: Any) -> Any:
    """`kv.Context.open`, with a prefix cache or without."""
    return kv.Context.open(model, capacity, threads=1, prefix_cache=folder, **options)


async def written(ctx: kv.Context) -> None:
    """Waits until nothing is being written any more."""
    prefixes = core_of(ctx).prefixes
    assert prefixes is not None
    await until(lambda: not prefixes.writer.busy)


def entries(folder: Path) -> list[Path]:
    """Of all models, the oldest first."""
    return sorted(folder.glob("*/*.prefix"), key=lambda path: path.stat().st_mtime_ns)


def files_in(folder: Path) -> list[Path]:
    """Of all kinds, unfinished ones too."""
    return [path for path in folder.rglob("*") if not path.is_dir() and path.name != ".lock"]


async def goes_on(branch: kv.Branch) -> tuple[Any, ...]:
    """What a branch says: logits, greedy and random tokens; it ends as it was."""
    row = (await branch.logits()).tobytes()
    mark = branch.mark()
    greedy = await branch.generate(max_tokens=6)
    await branch.rollback(mark)
    drawn = await branch.generate(max_tokens=6, sampling=kv.Sampling(temperature=1.0, seed=5))
    await branch.rollback(mark)
    await branch.rollback(len(branch) - 1)
    await branch.extend([7, 8, 9])
    last = (await branch.logits()).tobytes()
    return row, greedy.tokens, greedy.logprobs, drawn.tokens, last
