"""Several models in one program: opened on use, and closed for others where memory is short."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import agentkv as kv
from agentkv._context.core import ContextCore
from agentkv._context.model_pool import hold_no_model, keeping_branches_of
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

SMALL = {"model": "nano", "capacity": 400, "threads": 1}
PROMPT = "Who are you?"


@pytest.fixture(scope="module")
def size() -> int:
    """Bytes of one small model."""

    async def measured() -> int:
        async with kv.open_models({"one": SMALL}) as pool, pool.use("one"):
            return pool.states()[0].bytes

    return anyio.run(measured)


@asynccontextmanager
async def opened(names: str = "abc", most: int | None = None, idle: float | None = None) -> AsyncIterator[kv.ModelPool]:
    async with kv.open_models(dict.fromkeys(names, SMALL), max_memory=most, idle=idle) as pool:
        yield pool


def open_ones(pool: kv.ModelPool) -> str:
    return "".join(state.name for state in pool.states() if state.is_open)


async def use(pool: kv.ModelPool, name: str) -> None:
    async with pool.use(name) as ctx, await ctx.branch(PROMPT) as branch:
        await branch.generate(max_tokens=2)


async def test_a_model_is_opened_on_its_first_use_and_stays() -> None:
    async with opened() as pool:
        assert open_ones(pool) == ""
        async with pool.use("b") as first, pool.use("b") as second:
            assert first is second
            assert [state.uses for state in pool.states()] == [0, 2, 0]
        assert open_ones(pool) == "b"
        assert [(state.name, state.opens, state.uses) for state in pool.states()] == [
            ("a", 0, 0),
            ("b", 1, 0),
            ("c", 0, 0),
        ]
    with pytest.raises(kv.ContextClosed):
        await first.branch(PROMPT)


async def test_it_says_what_it_has() -> None:
    async with opened("ab") as pool:
        await use(pool, "b")
        assert repr(pool) == "<ModelPool: a (not open), b (open)>"
    assert repr(pool) == "<ModelPool: closed>"


async def test_the_least_recently_used_is_closed_for_another(size: int) -> None:
    async with opened(most=2 * size) as pool:
        for name in "aba":
            await use(pool, name)
        await use(pool, "c")
        assert open_ones(pool) == "ac"
        await use(pool, "b")
        assert open_ones(pool) == "bc"
        assert [state.opens for state in pool.states()] == [1, 2, 1]


async def test_one_in_use_is_waited_for(size: int) -> None:
    async with opened(most=size) as pool, anyio.create_task_group() as tasks:
        entered, leave = anyio.Event(), anyio.Event()

        async def hold() -> None:
            async with pool.use("a"):
                entered.set()
                await leave.wait()

        tasks.start_soon(hold)
        await entered.wait()
        tasks.start_soon(use, pool, "b")
        await until(lambda: pool.states()[1].uses)
        await anyio.lowlevel.checkpoint()
        assert open_ones(pool) == "a"
        leave.set()
        await until(lambda: open_ones(pool) == "b")


async def test_one_with_open_branches_is_in_use(size: int) -> None:
    async with opened(most=size) as pool, anyio.create_task_group() as tasks:
        async with pool.use("a") as ctx:
            branch = await ctx.branch(PROMPT)
        tasks.start_soon(use, pool, "b")
        await until(lambda: pool.states()[1].uses)
        assert (await branch.generate(max_tokens=2)).tokens
        assert await pool_closes_none(pool)
        await branch.close()
        await until(lambda: open_ones(pool) == "b")


async def pool_closes_none(pool: kv.ModelPool) -> bool:
    """Whether the only open model stays so."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    return open_ones(pool) == "a"


async def test_a_task_that_has_what_it_waits_for_is_told(size: int) -> None:
    async with opened(most=size) as pool:
        async with pool.use("a") as ctx:
            with pytest.raises(kv.OutOfMemory, match=r"'b' takes .* its cache; .* are in use. This task uses a itself"):
                async with pool.use("b"):
                    pass
            assert (await (await ctx.branch(PROMPT)).generate(max_tokens=2)).tokens
        assert [state.uses for state in pool.states()] == [0, 0, 0]


async def test_a_task_that_keeps_branches_of_what_it_waits_for_is_told(size: int) -> None:
    async with opened(most=size) as pool:
        async with pool.use("a") as ctx:
            branch = await ctx.branch(PROMPT)
        with keeping_branches_of([ctx]) as kept, pytest.raises(kv.OutOfMemory, match="This task uses a itself"):
            await use(pool, "b")
        assert kept.in_the_way
        await branch.close()
        await use(pool, "b")


async def test_a_task_of_its_own_waits_for_what_its_starter_has(size: int) -> None:
    async def use_b(pool: kv.ModelPool) -> None:
        hold_no_model()
        await use(pool, "b")

    async with opened(most=size) as pool, anyio.create_task_group() as tasks:
        async with pool.use("a"):
            tasks.start_soon(use_b, pool)
            await until(lambda: pool.states()[1].uses)
            assert await pool_closes_none(pool)
        await until(lambda: open_ones(pool) == "b")


async def test_a_model_that_is_too_large_alone_is_refused_and_closes_again(size: int) -> None:
    async with opened("a", most=size - 1) as pool:
        with pytest.raises(kv.OutOfMemory, match=r"model 'a' takes .* with its cache, and max_memory is .*; raise it"):
            await use(pool, "a")
        assert open_ones(pool) == ""


async def test_a_model_that_cannot_be_opened_leaves_the_others(tmp_path: Path, size: int) -> None:
    async with kv.open_models({"good": SMALL, "bad": tmp_path / "none"}, max_memory=size) as pool:
        await use(pool, "good")
        for _ in range(2):
            with pytest.raises(kv.ModelError):
                await use(pool, "bad")
        await use(pool, "good")
        assert open_ones(pool) == "good"


async def test_a_model_that_waits_comes_before_later_uses_of_the_others(size: int) -> None:
    """Steady traffic: each use of `a` ends once the next one has begun, or waits."""
    done = anyio.Event()

    async def traffic(pool: kv.ModelPool) -> None:
        while not done.is_set():
            async with pool.use("a"):
                await anyio.lowlevel.checkpoint()
                await until(lambda: pool.states()[0].uses > 1 or done.is_set())

    async with opened(most=size) as pool, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(traffic, pool)
        await until(lambda: open_ones(pool) == "a")
        with anyio.fail_after(PATIENCE):
            await use(pool, "b")
        done.set()


async def test_uses_go_on_where_waiting_does_not_help(size: int) -> None:
    """A branch that is open outside of any use: whoever has it may need the model to be done with it."""
    async with opened(most=size) as pool, anyio.create_task_group() as tasks:
        async with pool.use("a") as ctx:
            branch = await ctx.branch(PROMPT)
        tasks.start_soon(use, pool, "b")
        await until(lambda: pool.states()[1].uses)
        with anyio.fail_after(PATIENCE):
            for _ in range(3):
                await use(pool, "a")
        await branch.close()
        await until(lambda: open_ones(pool) == "b")


async def test_whoever_has_a_model_does_not_wait_for_those_that_lack_memory(size: int) -> None:
    async with opened(most=size) as pool, anyio.create_task_group() as tasks, pool.use("a"):
        tasks.start_soon(without_models, use, pool, "b")
        await until(lambda: pool.states()[1].uses)
        await use(pool, "a")


async def without_models(work: Callable[..., Any], *arguments: Any) -> None:
    hold_no_model()
    await work(*arguments)


async def test_a_task_that_outlives_its_starters_block_uses_nothing(size: int) -> None:
    async with opened(most=size) as pool, anyio.create_task_group() as tasks:
        leave, left = anyio.Event(), anyio.Event()

        async def later() -> None:
            await left.wait()
            await use(pool, "b")

        async def hold() -> None:
            async with pool.use("a"):
                await leave.wait()

        tasks.start_soon(hold)
        await until(lambda: open_ones(pool) == "a")
        async with pool.use("a"):
            tasks.start_soon(later)
        left.set()
        await until(lambda: pool.states()[1].uses)
        assert await pool_closes_none(pool)
        leave.set()
        await until(lambda: open_ones(pool) == "b")


async def test_whoever_waits_is_told_that_the_block_has_ended(size: int) -> None:
    told: list[str] = []

    async def wait(pool: kv.ModelPool, name: str) -> None:
        hold_no_model()
        with pytest.raises(kv.InvalidInput, match="these models are closed"):
            await use(pool, name)
        told.append(name)

    async with anyio.create_task_group() as tasks:
        async with opened(most=size) as pool, pool.use("a"):
            for name in "bbcc":
                tasks.start_soon(wait, pool, name)
            await until(lambda: [state.uses for state in pool.states()][1:] == [2, 2])
            await pool_closes_none(pool)
        assert open_ones(pool) == ""
    assert sorted(told) == ["b", "b", "c", "c"]
    assert open_ones(pool) == ""


async def test_a_model_that_is_too_large_for_now_is_nobodys_until_it_fits(size: int) -> None:
    """Its cache is in no figure before it was open once. Others ask for it while room is made."""
    large = SMALL | {"capacity": 1200}
    async with (
        kv.open_models({"a": SMALL, "b": large, "c": SMALL}, max_memory=2 * size + 1) as pool,
        anyio.create_task_group() as tasks,
    ):
        await use(pool, "a")
        async with pool.use("c"):
            tasks.start_soon(without_models, use, pool, "b")
            await until(lambda: open_ones(pool) == "c")
            tasks.start_soon(without_models, use, pool, "b")
            await until(lambda: pool.states()[1].opens)
            await pool_closes_none(pool)
        await until(lambda: open_ones(pool) == "b")


async def test_an_error_at_closing_is_nobodys_who_wants_another(
    size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close = ContextCore.close

    async def failing(core: ContextCore) -> None:
        await close(core)
        raise OSError("disk is full")

    async with opened(most=size) as pool:
        await use(pool, "a")
        with monkeypatch.context() as patch:
            patch.setattr(ContextCore, "close", failing)
            await use(pool, "b")
            assert open_ones(pool) == "b"
    assert "a model was closed with an error" in caplog.text


async def test_figures_are_there_before_the_first_use_and_count_drafts() -> None:
    drafted = SMALL | {"speculative": kv.spec.Mixed(kv.spec.DraftModel("nano"), kv.spec.Suffix())}
    async with kv.open_models({"one": "nano", "two": drafted, "unknown": "no-such-model-9"}) as pool:
        one, two, unknown = (state.bytes for state in pool.states())
    assert 0 < one == two - one
    assert unknown == 0


async def test_whoever_waits_may_be_cancelled(size: int) -> None:
    async with opened(most=size) as pool:
        async with pool.use("a") as ctx:
            branch = await ctx.branch(PROMPT)
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use, pool, "b")
                await until(lambda: pool.states()[1].uses)
                tasks.cancel_scope.cancel()
        assert [state.uses for state in pool.states()] == [0, 0, 0]
        await branch.close()
        await use(pool, "b")
        assert open_ones(pool) == "b"


async def test_idle_models_are_closed() -> None:
    async with opened(idle=0) as pool:
        async with pool.use("b"):
            await use(pool, "a")
            await until(lambda: open_ones(pool) == "b")
        await until(lambda: open_ones(pool) == "")
        await use(pool, "a")


async def test_unused_models_are_closed_on_demand() -> None:
    async with opened() as pool:
        await use(pool, "a")
        async with pool.use("b"):
            assert await pool.close_idle() == ["a"]
        assert open_ones(pool) == "b"


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no mapping": (lambda: kv.open_models(["nano"]), "models is .* mapping of names to models"),  # type: ignore[arg-type]
    "nothing": (lambda: kv.open_models({}), "models is .* mapping of names to models"),
    "no name": (lambda: kv.open_models({"": "nano"}), "a model's name is"),
    "no model": (lambda: kv.open_models({"a": {"capacity": 4}}), "model 'a' is .* must have `model`"),
    "no path": (lambda: kv.open_models({"a": 5}), "model 'a' is int 5"),  # type: ignore[dict-item]
    "argument": (lambda: kv.open_models({"a": {"model": "nano", "capasity": 4}}), "capasity.*did you mean"),
    "memory": (lambda: kv.open_models({"a": "nano"}, max_memory=0), "max_memory is 0"),
    "idle": (lambda: kv.open_models({"a": "nano"}, idle=-1), "idle is int -1"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_is_wrong_is_said_before_anything_is_opened(case: str) -> None:
    make, said = BAD[case]
    with pytest.raises(kv.InvalidInput, match=said):
        async with make():
            pass


async def test_an_unknown_name_is_refused() -> None:
    async with opened() as pool:
        with pytest.raises(kv.InvalidInput, match="there is no model str 'd'; there is 'a', 'b', 'c'"):
            await use(pool, "d")
    with pytest.raises(kv.InvalidInput, match="these models are closed"):
        await use(pool, "a")


@pytest.mark.parametrize("seed", range(3))
async def test_random_uses_stay_within_memory(seed: int, size: int) -> None:
    expected: dict[str, list[int]] = {}

    async def work(pool: kv.ModelPool, rng: random.Random) -> None:
        for _ in range(8):
            name, cancel = rng.choice("abcd"), rng.random() < 0.2
            with anyio.CancelScope() as scope:
                async with pool.use(name) as ctx, AsyncExitStack() as stack:
                    if cancel:
                        scope.cancel()
                    branch = await stack.enter_async_context(await ctx.branch(PROMPT))
                    tokens = (await branch.generate(max_tokens=4)).tokens
                    assert tokens == expected.setdefault(name, tokens)
            assert sum(state.bytes for state in pool.states() if state.is_open) <= 2 * size

    with anyio.fail_after(PATIENCE):
        async with opened("abcd", most=2 * size) as pool, anyio.create_task_group() as tasks:
            for task in range(6):
                tasks.start_soon(work, pool, random.Random(10 * seed + task))
        assert sum(state.opens for state in pool.states()) > 4
