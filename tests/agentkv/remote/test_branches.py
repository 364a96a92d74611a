"""Logs, epochs and streams of remote branches are those of the native engine, verb by verb."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import agentkv as kv
from agentkv.remote.branches import MOST_BRANCHES, BranchTable

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Both:
    """The same verbs on a native engine and on a table; an error of one is an error of the other."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.table = BranchTable(10**6, 10**6)
        self.pairs: list[tuple[int, int]] = []
        self.ends: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self.logs: dict[int, list[int]] = {}

    def do(self, native: Callable[[], Any], table: Callable[[], Any]) -> Any:
        told = []
        for verb in (native, table):
            try:
                told.append(verb())
            except Exception as error:
                told.append(type(error).__name__)
        assert isinstance(told[0], str) == isinstance(told[1], str), told
        return None if isinstance(told[0], str) else tuple(told)

    def check(self) -> None:
        for change in self.table.take_changes():
            log = self.logs.setdefault(change.branch, [])
            del log[change.kept :]
            log += memoryview(change.appended).cast("i").tolist()
        used = 0
        for native, table in self.pairs:
            branch = self.table.at(table)
            assert self.native.tokens(native).tolist() == branch.log.tolist() == self.logs[table]
            assert self.native.rng_stream(native) == branch.stream
            used += len(branch)
            end = (self.native.tip(native), (len(branch), branch.lineage.at(len(branch))))
            for known in self.ends:  # epochs are other numbers, and name the same histories
                assert (known[0] == end[0]) == (known[1] == end[1])
            self.ends.append(end)
        self.ends = self.ends[-200:]
        held, shared = self.table.token_counts()
        assert shared <= held <= used


@pytest.mark.parametrize("seed", range(6))
async def test_random_verbs(local: kv.Context, seed: int) -> None:
    rng = random.Random(seed)

    def run(native: Any) -> None:
        both = Both(native)

        def create() -> None:
            both.pairs.append((native.create()[0], both.table.create().id))

        create()
        for step in range(300):
            here, there = rng.choice(both.pairs)
            other = rng.choice(both.pairs)
            branch = both.table.at(there)
            match rng.randrange(8):
                case 0 if len(both.pairs) < 20:
                    made = native.fork(here, 2), [kid.id for kid in both.table.fork(branch, 2)]
                    both.pairs += zip(*made, strict=True)
                case 1 | 2 | 3:
                    tokens = [rng.randrange(20, 900) for _ in range(rng.randint(1, 5))]
                    job = native.extend(here, tokens)
                    while not any(finished.job == job for finished in native.step().finished):
                        pass
                    branch.append(tokens)
                    both.table.note_change(branch)
                case 4:
                    length = rng.randint(-1, len(branch) + 1)
                    both.do(partial(native.rollback, here, length), partial(both.table.rollback, branch, length))
                case 5:
                    length = rng.randint(0, len(branch))
                    epochs = both.native.tip(here)[1], branch.lineage.at(len(branch))
                    both.do(
                        partial(native.rollback, here, length, epochs[0]),
                        partial(both.table.rollback, branch, length, epochs[1]),
                    )
                case 6:
                    both.do(
                        partial(native.adopt, here, other[0]),
                        partial(both.table.adopt, branch, both.table.at(other[1])),
                    )
                case 7 if len(both.pairs) > 3 and step % 2:
                    native.close(here)
                    both.table.close(branch)
                    both.pairs.remove((here, there))
            both.check()
        for here, _ in both.pairs:
            native.close(here)

    await local._core.loop.call(run)


def test_tokens_that_branches_share_are_counted_once() -> None:
    table = BranchTable(1000, 1000)
    trunk = table.create()
    trunk.append(range(100))
    kids = table.fork(trunk, 3)
    for kid in kids:
        kid.append(range(10))
    assert table.token_counts() == (130, 100)
    table.rollback(kids[0], 50)
    table.close(trunk)
    assert table.token_counts() == (120, 100)
    table.adopt(kids[0], kids[1])
    assert table.token_counts() == (120, 110)


def test_bounds() -> None:
    table = BranchTable(100, 50)
    branch = table.create()
    branch.append(range(40))
    with pytest.raises(kv.ContextFull, match="50"):
        table.check_positions(branch, 11)
    with pytest.raises(kv.PositionsExhausted, match="100"):
        table.check_positions(branch, 61)
    with pytest.raises(kv.TooManyBranches):
        table.fork(branch, MOST_BRANCHES)
    assert len(table) == 1
