"""Branches that wait give up their cells to those that need some, and come back with the same bits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import agentkv as kv
from agentkv._context import overflow
from agentkv._context.handle import core_of, handle_of
from agentkv._engine.loop import StepLoop
from tests.rows import one_in
from tests.waiting import PATIENCE, SOON, until

from ..books import books_are_held  # noqa: F401 - a fixture
from .waiting_branches import Trouble, play

pytestmark = pytest.mark.anyio

PROMPT = [3 + n % 290 for n in range(100)]
OTHER = [5 + n % 280 for n in range(100)]


def opened(capacity: int = 180, **options: Any) -> Any:
    return kv.Context.open(kv.models.nano(), capacity=capacity, **options)


class Gate:
    """A tool that waits until the test opens it."""

    def __init__(self) -> None:
        self.begun, self.open = anyio.Event(), anyio.Event()

    def agent(self) -> kv.Agent[Any, str]:
        @kv.tool
        async def look(what: str) -> str:
            """Looks."""
            self.begun.set()
            await self.open.wait()
            return f"{what} is fine"

        return kv.Agent("You look.", tools=[look], max_tokens=60)


def script(text: str) -> kv.testing.Reply:
    asked = text[text.rindex("question") :]
    return "It is fine." if "is fine" in asked else [kv.testing.call("look", what="it")]


def scripted(capacity: int, **options: Any) -> Any:
    return kv.testing.replies(script, capacity=capacity, **options)


async def one_turn(**options: Any) -> list[int]:
    """Tokens of an undisturbed turn."""
    gate = Gate()
    gate.open.set()
    async with scripted(4096, **options) as ctx:
        branch = await gate.agent().trunk(ctx)
        await gate.agent().run(branch, "question")
        return list(branch.tokens)


async def disturbed_turn(ctx: kv.Context, between: Callable[[kv.Branch], Any]) -> kv.Branch:
    """A turn while whose tool runs others take cells, `between` takes place, and the others leave."""
    gate = Gate()
    agent = gate.agent()
    branch = await agent.trunk(ctx)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run, branch, "question")
        with anyio.fail_after(PATIENCE):
            await gate.begun.wait()
            await anyio.sleep(2 * SOON)  # a branch that was in use a moment ago is taken last
            await between(branch)
            gate.open.set()
    return branch


async def fill(ctx: kv.Context) -> kv.Branch:
    """Takes more cells than are free."""
    tokens = [3 + n * 7 % 290 for n in range(ctx.stats.cells_free + 20)]
    return await ctx.branch(tokens)


PLACES: dict[str, Callable[[Path], kv.Offload]] = {
    "memory": lambda folder: kv.Offload(),
    "disk": lambda folder: kv.Offload(memory_bytes=0, folder=folder / "made"),
    "nowhere": lambda folder: kv.Offload(memory_bytes=0),
    "memory, let go at once": lambda folder: kv.Offload(ttl=0),
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_turn_that_waits_gives_up_its_cells(tmp_path: Path, place: str) -> None:
    expected = await one_turn()
    async with scripted(600, offload=PLACES[place](tmp_path)) as ctx:

        async def between(branch: kv.Branch) -> None:
            other = await fill(ctx)
            stats = ctx.stats
            assert branch.offloaded
            assert stats.offloads == 1
            assert (stats.offload_memory_bytes > 0) == (place == "memory")
            assert (stats.offload_disk_bytes > 0) == (place == "disk")
            await other.close()

        branch = await disturbed_turn(ctx, between)
        assert branch.tokens == expected
        assert (ctx.stats.refed > 0) == (place not in ("memory", "disk"))
        assert (ctx.stats.offload_memory_bytes, ctx.stats.offload_disk_bytes) == (0, 0)


async def test_none_keeps_all_cells_in_the_cache() -> None:
    async with scripted(600, offload=None) as ctx:

        async def between(branch: kv.Branch) -> None:
            with pytest.raises(kv.ContextFull):
                await fill(ctx)

        assert len(await disturbed_turn(ctx, between)) > 0


async def test_a_branch_of_infinite_priority_keeps_its_cells() -> None:
    async with scripted(600) as ctx:

        async def between(branch: kv.Branch) -> None:
            branch.priority = math.inf
            with pytest.raises(kv.ContextFull):
                await fill(ctx)
            assert not branch.offloaded

        await disturbed_turn(ctx, between)


async def test_a_turn_that_is_cancelled_while_its_cells_are_away_leaves_its_branch_as_it_was() -> None:
    async with scripted(600) as ctx:
        gate = Gate()
        agent = gate.agent()
        branch = await agent.trunk(ctx)
        before, logits = branch.tokens, await branch.logits()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, branch, "question")
            await gate.begun.wait()
            await anyio.sleep(2 * SOON)
            other = await fill(ctx)
            assert branch.offloaded
            tasks.cancel_scope.cancel()
        await other.close()
        assert branch.tokens == before
        assert (await branch.logits()).tobytes() == logits.tobytes()
        branch.close()
        await until(lambda: ctx.stats.offload_memory_bytes == 0)


async def test_what_a_closed_branch_had_outside_is_freed() -> None:
    async with opened(offload=kv.Offload(idle=0)) as ctx:
        branch = await ctx.branch(PROMPT)
        other = await ctx.branch(OTHER)
        assert branch.offloaded
        assert ctx.stats.offload_memory_bytes > 0
        await branch.close()
        assert ctx.stats.offload_memory_bytes == 0
        assert not other.offloaded


async def test_the_lowest_priority_goes_first_and_forks_inherit_it() -> None:
    async with opened(400, offload=kv.Offload(idle=0)) as ctx:
        first, second, third = [await ctx.branch([n, *PROMPT]) for n in (3, 4, 5)]
        first.priority, third.priority = 1, 2
        assert (await third.fork()).priority == 2
        await anyio.sleep(2 * SOON)  # a branch that was in use a moment ago is taken last
        await ctx.branch(OTHER)
        await ctx.branch([9, *OTHER])
        assert [each.offloaded for each in (first, second, third)] == [False, True, False]


async def test_what_can_never_fit_takes_no_cells() -> None:
    async with opened(offload=kv.Offload(idle=0)) as ctx:
        branch = await ctx.branch(PROMPT)
        with pytest.raises(kv.ContextFull):
            await (await ctx.branch("Hello")).extend([3 + n % 290 for n in range(200)])
        with pytest.raises(kv.ContextFull):
            await ctx.branch([3 + n % 290 for n in range(200)])
        assert not branch.offloaded


async def test_cells_that_only_waiting_branches_share_come_back_shared() -> None:
    async with opened(300, offload=kv.Offload(idle=0)) as ctx:
        trunk = await ctx.branch(PROMPT)
        kids = await trunk.fork(2)
        for number, kid in enumerate(kids):
            await kid.extend([7 + number] * 20)
        logits = [(await each.logits()).tobytes() for each in (trunk, *kids)]
        other = await ctx.branch([3 + n * 7 % 290 for n in range(280)])
        assert all(each.offloaded for each in (trunk, *kids))
        assert ctx.stats.cells_used <= 281
        await other.close()
        forwards = ctx.stats.forwards
        again = [(await each.logits()).tobytes() for each in (trunk, *kids)]
        assert again == logits
        assert ctx.stats.forwards == forwards  # nothing was computed again
        assert ctx.stats.cells_shared >= 100


async def test_what_has_waited_longest_goes_on_to_disk(tmp_path: Path) -> None:
    async with opened(120) as ctx:
        await ctx.branch(PROMPT)
        cell = ctx.stats.kv_bytes // ctx.stats.cells
    policy = kv.Offload(idle=0, memory_bytes=150 * cell, folder=tmp_path, disk_bytes=150 * cell)
    async with opened(180, offload=policy) as ctx:
        branches = []
        for n in range(4):
            branches.append(await ctx.branch([3 + n, *PROMPT]))
            await anyio.sleep(2 * SOON)
        assert ctx.stats.offload_memory_bytes > 0
        assert ctx.stats.offload_disk_bytes > 0
        assert [each.offloaded for each in branches] == [True, True, True, False]
        refed = ctx.stats.refed
        await branches[1].logits()
        assert ctx.stats.refed == refed  # from the disk
        await branches[0].logits()
        assert ctx.stats.refed > refed  # what has waited longest of all was let go


@pytest.mark.usefixtures("books_are_held")
@pytest.mark.parametrize("what", ["disk full", "damaged"])
async def test_cells_that_cannot_be_kept_are_computed_again(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    trouble = Trouble(0, 1.0)
    trouble.happens = lambda each: each == what  # type: ignore[method-assign]
    with trouble.at_work():
        async with opened(offload=kv.Offload(idle=0, memory_bytes=0, folder=tmp_path)) as ctx:
            branch = await ctx.branch(PROMPT)
            logits = (await branch.logits()).tobytes()
            await ctx.branch(OTHER)
            assert branch.offloaded
            assert (await branch.logits()).tobytes() == logits
            assert ctx.stats.refed > 0
    assert re.search("are computed again", caplog.text)


async def test_many_agents_end_on_a_cache_that_fits_few() -> None:
    """None of them lacks cells, and each says what it says alone."""
    expected = await one_turn()

    @kv.tool
    async def look(what: str) -> str:
        """Looks."""
        await anyio.lowlevel.checkpoint()
        return f"{what} is fine"

    agent = kv.Agent("You look.", tools=[look], max_tokens=60)
    async with scripted(700) as ctx:
        ended: list[list[int]] = []

        async def work(number: int) -> None:
            async with await ctx.branch() as branch:
                text = f"{number} " + "and so on " * 30 + "question"
                run = await agent.run(branch, text)
                assert run.text == "It is fine."
                ended.append(branch.tokens)

        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(work, number)
        assert len(ended) == 30
        assert ctx.stats.offloads > 0
        assert ctx.stats.cells_used == 0
    assert expected


async def test_a_branch_at_the_last_position_raises_as_ever() -> None:
    async with opened(8192) as ctx:
        most = ctx.model_info.max_positions
        assert most is not None
        branch = await ctx.branch([3 + n % 290 for n in range(most)])
        with pytest.raises(kv.PositionsExhausted):
            await branch.generate()


def offending(tmp_path: Path) -> dict[str, Path]:
    """Places where there can be no folder."""
    (tmp_path / "file").write_text("a file")
    return {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "folder", "proc": Path("/proc/agentkv")}


@pytest.mark.parametrize("place", ["a file", "below a file", "proc"])
async def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path, place: str) -> None:
    with pytest.raises(kv.InvalidInput, match="the folder of offload"):
        async with opened(offload=kv.Offload(folder=offending(tmp_path)[place])):
            pass


async def test_a_stream_that_is_left_keeps_what_was_read_though_its_cells_are_away() -> None:
    async with opened(offload=kv.Offload(idle=0)) as ctx:
        branch = await ctx.branch(PROMPT)
        async with branch.stream(max_tokens=8) as stream:
            read = [(await anext(stream)).id]
            await until(lambda: not handle_of(branch).state.is_in_use)
            await ctx.branch(OTHER)
            assert ctx.stats.offloads
        assert branch.tokens == PROMPT + read


async def test_cells_that_others_took_while_room_was_made_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on a branch without them is refused."""
    look, looks = overflow._usage_of, []

    async def look_and_fill(branch: kv.Branch, first: int = 0) -> overflow.BranchUsage:
        usage = await look(branch, first)
        if not looks:
            looks.append(usage)
            await (await ctx.branch(OTHER)).close()
            assert handle_of(branch).state.offloaded is not None
        return usage

    async with opened(offload=kv.Offload(idle=0)) as ctx:
        branch = await ctx.branch(PROMPT)
        monkeypatch.setattr(overflow, "_usage_of", look_and_fill)
        assert await overflow.OverflowHandler(branch, 1).make()
        assert handle_of(branch).state.offloaded is None
        assert looks


async def test_cells_of_a_copy_whose_branch_is_closed_are_waited_for() -> None:
    """They are of no branch that could give them up, and come free by themselves."""
    async with opened(300, offload=kv.Offload(idle=0)) as ctx:
        loop = core_of(ctx).loop
        branch = await ctx.branch(PROMPT)
        pin, _ = await loop.call(lambda engine: engine.pin([branch.id]))  # type: ignore[attr-defined]
        await branch.close()
        made: list[kv.Branch] = []

        async def make() -> None:
            made.append(await ctx.branch([7 + n % 270 for n in range(250)]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(make)
            await until(lambda: core_of(ctx).offloader._claims)  # type: ignore[union-attr]
            await anyio.sleep(SOON)
            assert not made
            await loop.call(lambda engine: engine.unpin(pin.id))  # type: ignore[attr-defined]
        assert made


async def _saved(ctx: kv.Context, a: kv.Branch, b: kv.Branch, folder: Path) -> None:
    await ctx.save(folder / "both", {"a": a, "b": b})


async def _adopted(ctx: kv.Context, a: kv.Branch, b: kv.Branch, folder: Path) -> None:
    await a.adopt(b)
    assert a.tokens == b.tokens


TOGETHER: dict[str, tuple[Callable[..., Any], bool]] = {"save": (_saved, False), "adopt": (_adopted, True)}
"""Methods of two branches, and whether they need no room for both."""


@pytest.mark.parametrize("name", TOGETHER)
async def test_a_method_of_two_branches_that_do_not_fit_together_ends(tmp_path: Path, name: str) -> None:
    """Each was brought back in turn for ever."""
    work, fits = TOGETHER[name]
    async with opened(offload=kv.Offload(idle=0)) as ctx:
        a, b = await ctx.branch(PROMPT), await ctx.branch(OTHER)
        with anyio.fail_after(PATIENCE):
            if fits:
                await work(ctx, a, b, tmp_path)
            else:
                with pytest.raises(kv.ContextFull):
                    await work(ctx, a, b, tmp_path)
        assert await a.logits() is not None
        assert await b.logits() is not None


async def test_branches_draw_as_where_nothing_gives_up_cells() -> None:
    """However often the cells of a prompt were taken by others, its random numbers are of one stream."""

    async def drawn(ctx: kv.Context) -> list[list[int]]:
        made = []
        for number in range(5):
            branch = await ctx.branch([3 + number, *PROMPT])
            made.append(await branch.generate(max_tokens=8, sampling=kv.Sampling(temperature=1.5, seed=5)))
            kept.append(branch)
        return [each.tokens for each in made]

    kept: list[kv.Branch] = []
    async with opened(4096) as large:
        expected = await drawn(large)
    async with opened(offload=kv.Offload(idle=0)) as small:
        assert await drawn(small) == expected


@pytest.mark.parametrize("tokens", [250, 1000])
async def test_branches_under_a_window_ask_for_what_they_take_at_most(tokens: int) -> None:
    async with opened(300, window=128, sinks=4, offload=kv.Offload(idle=0)) as ctx:
        for number in range(2):
            branch = await ctx.branch([3 + number])
            await branch.extend([3 + (number + n * 7) % 290 for n in range(tokens)])
            assert await branch.logits() is not None
            other = await ctx.branch([4 + number + (n * 11) % 280 for n in range(tokens)])
            assert await other.logits() is not None


async def test_a_claim_for_much_is_met_while_small_branches_come_and_go() -> None:
    async with opened(260, offload=kv.Offload(idle=0)) as ctx:
        large = await ctx.branch([3 + n % 290 for n in range(200)])
        ended = anyio.Event()

        async def small(number: int) -> None:
            while not ended.is_set():
                async with await ctx.branch([number, *(5 + n % 280 for n in range(50))]) as branch:
                    await branch.generate(max_tokens=4)

        async with anyio.create_task_group() as tasks:
            for number in range(3, 7):
                tasks.start_soon(small, number)
            with anyio.fail_after(PATIENCE):
                for _ in range(3):
                    await until(lambda: large.offloaded)
                    assert await large.logits() is not None
            ended.set()


@pytest.mark.usefixtures("books_are_held")
@pytest.mark.parametrize("seed", one_in(2, range(6)))
async def test_random_verbs_of_many_tasks_say_what_an_oracle_says(tmp_path: Path, seed: int) -> None:
    counts = await play(tmp_path, seed, 120)
    assert counts["offloads"] > 0


@pytest.mark.soak
@pytest.mark.usefixtures("books_are_held")
async def test_they_do_so_for_long(tmp_path: Path, soak_count: int) -> None:
    for seed in range(soak_count // 500):
        counts = await play(tmp_path, 100 + seed, 2500)
        print(seed, dict(sorted(counts.items())), flush=True)


async def test_a_branch_whose_history_is_rewritten_keeps_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []
    async with opened(300) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "Who are you?"}])
        record, run = handle_of(branch).record, StepLoop.run
        record.parked = True  # as a conversation of a server

        async def run_and_fill(loop: StepLoop, command: Any) -> Any:
            result = await run(loop, command)
            if record.state.is_in_use and not tried:  # the draft is computed, and not adopted yet
                tried.append(True)
                with pytest.raises(kv.ContextFull):
                    await fill(ctx)
            return result

        monkeypatch.setattr(StepLoop, "run", run_and_fill)
        extended = await branch.extend([{"role": "user", "content": "And where?"}])
        assert tried
        assert extended.rewritten
        assert not branch.offloaded
        assert (await fill(ctx)) is not None
        assert branch.offloaded
