"""Random prompts over one folder, which others evict from, damage and write to meanwhile: a player for each process.

An oracle knows what each prompt says: a Context without a folder. Run as a script, a player says what it counted:
`python -m tests.agentkv.prefixes.playing FOLDER SEED STEPS`.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
from anyio import to_thread

import agentkv as kv
from agentkv._context.handle import core_of
from agentkv._prefixes.folder import PrefixFolder

from .opening import entries, open_with, written

CAPACITY, MOST_BYTES = 3000, 4 << 20  # of nano: some two thousand tokens
TRUNKS = [[3 + (i * (11 + 2 * n) + i // 7) % 290 for i in range(1000)] for n in range(3)]
CUTS = (260, 320, 450, 512, 700, 999)


class PrefixPlayer:
    """One process: it prompts, restarts, cancels; and it does to the folder what others might."""

    def __init__(self, folder: Path, seed: int, oracle: kv.Context) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._oracle = oracle
        self._known: dict[tuple[int, ...], bytes] = {}
        self._stack = AsyncExitStack()
        self._ctx: kv.Context
        self.counts: Counter[str] = Counter()

    async def play(self, steps: int) -> None:
        """So many steps. Raises AssertionError for the first differing bit."""
        acts: list[Callable[[], Awaitable[None]]] = [self._prompt] * 6
        acts += [self._prompts, self._cancelled, self._restart, self._restart, self._damage, self._evict]
        await self._open()
        for _ in range(steps):
            act = self._rng.choice(acts)
            await act()
            self.counts[act.__name__.strip("_")] += 1
        await self._close()

    async def _open(self) -> None:
        retain = self._rng.choice([None, None, 0, 300])
        self._ctx = await self._stack.enter_async_context(
            open_with(kv.models.nano(), self._folder, CAPACITY, prefix_cache_bytes=MOST_BYTES, retain=retain)
        )

    async def _close(self) -> None:
        if self._rng.random() < 0.7:  # or what is being written ends unfinished
            await written(self._ctx)
            await self._ctx.keep()
            assert self._ctx.stats.cells_used == 0
        stats = self._ctx.stats
        self.counts["hits"] += stats.prefix_cache_hits
        self.counts["written"] += stats.prefix_cache_written
        await self._stack.aclose()

    async def _restart(self) -> None:
        await self._close()
        await self._open()

    def _tokens(self) -> list[int]:
        trunk = self._rng.choice(TRUNKS)[: self._rng.choice(CUTS)]
        return trunk + [self._rng.randrange(3, 290) for _ in range(self._rng.choice([1, 5, 40]))]

    async def _row(self, tokens: list[int]) -> bytes:
        key = tuple(tokens)
        if key not in self._known:
            async with await self._oracle.branch(tokens) as branch:
                self._known[key] = (await branch.logits()).tobytes()
        return self._known[key]

    async def _check(self, tokens: list[int]) -> None:
        async with await self._ctx.branch(tokens) as branch:
            assert (await branch.logits()).tobytes() == await self._row(tokens)
            await branch.rollback(self._rng.choice([len(tokens) - 1, len(tokens) // 2, 255]))
            await branch.extend([7])
            assert (await branch.logits()).tobytes() == await self._row([*tokens[: len(branch) - 1], 7])

    async def _prompt(self) -> None:
        await self._check(self._tokens())

    async def _prompts(self) -> None:
        await kv.gather(*(self._check(tokens) for tokens in (self._tokens(), self._tokens())))

    async def _cancelled(self) -> None:
        with anyio.move_on_after(self._rng.random() * 0.05):
            await self._check(self._tokens())

    async def _damage(self) -> None:
        await to_thread.run_sync(self._damage_one)

    def _damage_one(self) -> None:
        """Puts a damaged copy in an entry's place; never writes to a file that others have mapped."""
        with suppress(OSError, IndexError):
            path = self._rng.choice(entries(self._folder))
            data = bytearray(path.read_bytes())
            if self._rng.random() < 0.5:
                del data[self._rng.randrange(len(data)) :]
            else:
                data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            copy = path.with_name(f"damaged-{secrets.token_hex(4)}")
            copy.write_bytes(data)
            copy.chmod(0o600)
            os.replace(copy, path)
            self.counts["damaged"] += 1

    async def _evict(self) -> None:
        await to_thread.run_sync(self._evict_some)

    def _evict_some(self) -> None:
        other = PrefixFolder(self._folder, core_of(self._ctx).model_key(), MOST_BYTES, exact=False)
        other.make_room(self._rng.choice([MOST_BYTES, MOST_BYTES // 2, 0]))


async def play(folder: Path, seed: int, steps: int) -> Counter[str]:
    """A session of one process; returns what it counted."""
    async with open_with(kv.models.nano(), None, CAPACITY) as oracle:
        player = PrefixPlayer(folder, seed, oracle)
        try:
            await player.play(steps)
        except Exception as error:
            error.add_note(f"seed {seed}, after {player.counts}")
            raise
        return player.counts


if __name__ == "__main__":
    print(json.dumps(anyio.run(play, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
