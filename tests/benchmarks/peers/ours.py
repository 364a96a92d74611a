"""agentkv: one Context that is open for the whole run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

import agentkv as kv

from .rows import Decode, Prefill, Row


class Ours:
    """A trunk as long as the deepest row; shallower rows fork it and roll back."""

    name = "agentkv"

    def __init__(self, portal: BlockingPortal, trunk: kv.Branch, context: kv.Context, tokens: int) -> None:
        self._portal, self._trunk, self._context, self._tokens = portal, trunk, context, tokens
        self._prompts = 0

    def rate(self, row: Row) -> float:
        return self._portal.call(self._decode if isinstance(row, Decode) else self._prefill, row)

    async def _decode(self, row: Decode) -> float:
        async with await self._trunk.fork() as base:
            await base.rollback(max(1, row.depth))
            branches = await base.fork(row.branches)
            start = time.perf_counter()
            generations = await kv.gather(*(branch.generate(max_tokens=self._tokens) for branch in branches))
            seconds = time.perf_counter() - start
            for branch in branches:
                branch.close()
        return sum(len(generation.tokens) for generation in generations) / seconds

    async def _prefill(self, row: Prefill) -> float:
        self._prompts += 1
        start = time.perf_counter()
        async with await self._context.branch(_prompt(row.tokens, self._prompts)):
            return row.tokens / (time.perf_counter() - start)


@contextmanager
def opened(folder: Path, rows: Sequence[Row], tokens: int, threads: int) -> Iterator[Ours]:
    """agentkv with what these rows need, prefilled."""
    decodes = [row for row in rows if isinstance(row, Decode)]
    deepest = max(row.depth for row in decodes)
    room = max(row.branches for row in decodes) * (tokens + 1) + max(r.tokens for r in rows if isinstance(r, Prefill))
    with start_blocking_portal() as portal:
        opening = kv.Context.open(folder, capacity=deepest + room, kv_dtype="fp16", threads=threads, retain=0)
        with portal.wrap_async_context_manager(opening) as context:
            trunk = portal.call(context.branch, _prompt(max(1, deepest), 0))
            yield Ours(portal, trunk, context, tokens)


def _prompt(n: int, seed: int) -> list[int]:
    """n tokens that share no beginning with another seed's."""
    return [(seed * 7919 + i * 104_729) % 256 for i in range(n)]
