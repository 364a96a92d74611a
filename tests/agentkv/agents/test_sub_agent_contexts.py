"""Sub-agents on another Context than their caller's: another model, with its own template and cells."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.adapters import random_adapter
from tests.agentkv.journal.crashes import QUESTION, Crash, call, left_by, only_left, opened
from tests.waiting import until

pytestmark = pytest.mark.anyio
HELPS = [call("helper", task="Count them."), "All done."]
SMALL = {"model": "nano", "capacity": 1024, "threads": 1}


@pytest.fixture(scope="module")
def tiny(tiny_exported_folder: Callable[..., Path]) -> Path:
    return tiny_exported_folder("llama", quant="q8")


def planner_of(helper: kv.Agent[Any, Any], **where: Any) -> kv.Agent[Any, str]:
    return kv.Agent("You plan.", tools=[helper.as_tool("helper", "helps", **where)])


@asynccontextmanager
async def both(helps: Any, tiny: Path, plans: Any = HELPS) -> AsyncIterator[tuple[kv.Context, kv.Context]]:
    """The planner's Context, on nano, and the helper's, on a model with another tokenizer and template."""
    async with (
        kv.testing.replies(plans, capacity=2048, threads=1) as large,
        kv.testing.replies(helps, model=tiny, capacity=1024, call_format="hermes") as small,
    ):
        yield large, small


async def test_the_conversation_is_its_own_in_the_other_models_template(tiny: Path) -> None:
    seen: list[Any] = []

    def before(context: kv.RunContext[Any]) -> None:
        seen.append((context.branch.context, context.branch.text, [m.role for m in context.branch.messages]))
        assert context.deps == "deps"

    async with both(["There are three."], tiny) as (large, small):
        planner = planner_of(kv.Agent("You count.", before_round=before), context=small)
        branch = await planner.trunk(large)
        run = await planner.run(branch, QUESTION, deps="deps")
        assert [(record.status, record.result) for record in run.calls] == [("done", "There are three.")]
        assert [message.content for message in run.messages if message.role == "tool"] == ["There are three."]
        ((context, text, roles),) = seen
        alone = await small.branch(
            [{"role": "system", "content": "You count."}, {"role": "user", "content": "Count them."}]
        )
        assert (context, text, roles) == (small, alone.text, ["system", "user"])
        assert small.branches == [alone]  # its own are closed
        assert large.branches == [branch]
        assert (large.stats.generated, small.stats.generated) != (0, 0)


async def test_helpers_on_two_contexts_run_at_once(tiny: Path) -> None:
    inside: list[str] = []

    async def meet(context: kv.RunContext[Any]) -> None:
        inside.append(context.agent.instructions)
        await until(lambda: len(inside) == 2)

    plans = [[call("one", task="a"), call("two", task="b")], "All done."]
    async with both(["first"], tiny, plans) as (large, small), kv.testing.replies(["second"], **SMALL) as other:
        helpers = [kv.Agent(f"You are {name}.", before_round=meet) for name in ("one", "two")]
        tools = [
            helpers[0].as_tool("one", "helps", context=small),
            helpers[1].as_tool("two", "helps", context=other),
        ]
        planner = kv.Agent("You plan.", tools=tools)
        run = await planner.run(await planner.trunk(large), QUESTION)
        assert [record.result for record in run.calls] == ["first", "second"]


async def test_a_model_of_a_pool_is_in_use_while_it_helps_and_no_longer() -> None:
    async with (
        kv.testing.replies(HELPS, capacity=2048, threads=1) as large,
        kv.open_models({"worker": SMALL}) as pool,
    ):
        (before,) = pool.states()
        inside: list[kv.ModelState] = []
        helper = kv.Agent("You are Nano.", before_round=lambda _: inside.extend(pool.states()))
        planner = planner_of(helper, context=pool.model("worker"))
        assert not before.is_open  # naming it opens nothing
        run = await planner.run(await planner.trunk(large), QUESTION)
        assert [record.status for record in run.calls] == ["done"]
        assert [(state.is_open, state.uses) for state in inside] == [(True, 1)]
        assert [(state.is_open, state.uses) for state in pool.states()] == [(True, 0)]
        assert await pool.close_idle() == ["worker"]  # no branch of the helper's keeps it open


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_cancelled_turn_cancels_its_helpers_and_leaves_nothing_open(tiny: Path, pooled: bool) -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def wait(context: kv.RunContext[Any]) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with both([], tiny, HELPS[:1]) as (large, small), kv.open_models({"worker": SMALL}) as pool:
        helper = kv.Agent("You count.", before_round=wait)
        planner = planner_of(helper, context=pool.model("worker") if pooled else small)
        branch = await planner.trunk(large)
        tokens = branch.tokens
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(planner.run, branch, QUESTION)
            await began.wait()
            tasks.cancel_scope.cancel()
        assert ended.is_set()
        assert branch.tokens == tokens
        assert (large.branches, small.branches) == ([branch], [])
        assert [state.uses for state in pool.states()] == [0]
        assert await pool.close_idle() == (["worker"] if pooled else [])


async def test_a_helper_that_fails_is_an_error_that_the_planner_reads(tiny: Path) -> None:
    async with both(["one two three"], tiny) as (large, small):
        planner = planner_of(kv.Agent("You count.", max_message_tokens=1), context=small)
        run = await planner.run(await planner.trunk(large), QUESTION)
        assert [record.status for record in run.calls] == ["failed"]
        assert "LimitReached" in (run.calls[0].error or "")
        assert small.branches == []


async def _closed() -> kv.Context:
    async with kv.Context.open(**SMALL) as context:
        return context


async def _closed_pool() -> Any:
    async with kv.open_models({"worker": SMALL}) as pool:
        return pool.model("worker")


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [(_closed, kv.ContextClosed, "was left"), (_closed_pool, kv.InvalidInput, "block of kv.open_models has ended")],
)
async def test_a_turn_whose_helper_has_no_open_context_does_not_begin(where: Any, error: Any, said: str) -> None:
    async with kv.testing.replies([], capacity=1024, threads=1) as large:
        planner = planner_of(kv.Agent("You count."), context=await where())
        branch = await planner.trunk(large)
        tokens = branch.tokens
        with pytest.raises(error, match=said):
            await planner.run(branch, QUESTION)
        assert branch.tokens == tokens


async def test_a_turn_whose_helper_is_of_another_event_loop_does_not_begin() -> None:
    async with kv.testing.replies([], capacity=1024, threads=1) as large:
        other = await anyio.to_thread.run_sync(kv.Context.open(**SMALL).sync)
        planner = planner_of(kv.Agent("You count."), context=other.awaited)
        with pytest.raises(kv.WrongEventLoop):
            await planner.run(await planner.trunk(large), QUESTION)
        await anyio.to_thread.run_sync(other.close)


async def test_what_cannot_be_meant_is_refused_at_once(tiny: Path, tmp_path: Path) -> None:
    helper, folder = kv.Agent("You count."), random_adapter(tiny, tmp_path / "a", seed=0)
    async with (
        kv.Context.open(tiny, capacity=256) as one,
        kv.Context.open(tiny, capacity=256) as two,
        kv.open_models({"worker": SMALL}) as pool,
    ):
        adapter = await one.adapter(folder)
        for where, error, said in (
            ({"context": "worker"}, kv.InvalidInput, r"pool\.model\(name\)"),
            ({"context": pool}, kv.InvalidInput, r"pool\.model\(name\)"),
            ({"fork": "yes"}, kv.InvalidInput, "fork is"),
            ({"context": two, "adapter": adapter}, kv.AdapterError, "loaded in another Context"),
            ({"context": pool.model("worker"), "adapter": adapter}, kv.InvalidInput, "may be opened anew"),
        ):
            with pytest.raises(error, match=said):
                helper.as_tool("helper", "helps", **where)  # type: ignore[arg-type]
        with pytest.raises(kv.InvalidInput, match=r"there is no model .*'big'; there is 'worker'"):
            pool.model("big")


@pytest.mark.parametrize("where", ["fork", "own trunk", "context"])
async def test_a_helper_may_have_an_adapter_of_its_own(tiny: Path, tmp_path: Path, where: str) -> None:
    seen: list[Any] = []

    def replied(text: str) -> Any:
        return "three" if "Count them." in text.rpartition("user")[2] else "All done."

    options: dict[str, Any] = {"model": tiny, "capacity": 1024, "call_format": "hermes"}
    plans = iter([HELPS[0], "three", "All done."] if where != "context" else HELPS)
    async with (
        kv.testing.replies(lambda _: next(plans), **options) as large,
        kv.testing.replies(lambda _: "three", **options) as small,
    ):
        context = small if where == "context" else large
        adapter = await context.adapter(random_adapter(tiny, tmp_path / "counts", seed=0))
        helper = kv.Agent("You count.", before_round=lambda c: seen.append(c.branch.adapter))
        placed: dict[str, Any] = {"fork": where == "fork", "adapter": adapter}
        planner = planner_of(helper, **placed, **({"context": small} if where == "context" else {}))
        branch = await planner.trunk(large)
        run = await planner.run(branch, QUESTION)
        assert [record.result for record in run.calls] == ["three"]
        assert (seen, branch.adapter) == ([adapter], None)


async def test_files_that_a_helper_changes_elsewhere_are_the_planners(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "count.txt").write_text("none")

    @kv.tool
    def note(context: kv.RunContext[Any], what: str) -> str:
        (context.workspace / "count.txt").write_text(what)
        return "noted"

    async with both([call("note", what="three"), "Noted."], tiny) as (large, small):
        planner = planner_of(kv.Agent("You count.", tools=[note]), context=small)
        branch = await planner.trunk(large, workspace=kv.Workspace(tmp_path))
        await planner.run(branch, QUESTION)
        assert branch.workspace is not None
        assert (branch.workspace.path / "count.txt").read_text() == "three"
        assert (tmp_path / "count.txt").read_text() == "none"


@pytest.mark.parametrize("model", ["the same", "another"])
async def test_a_helpers_turn_goes_on_in_its_context_in_another_process(tiny: Path, tmp_path: Path, model: str) -> None:
    """With another model in its place, the call begins another turn."""
    crash = Crash(tmp_path / "runs.db", "look b")

    def planner(of: Crash, small: kv.Context) -> kv.Agent[Any, str]:
        return planner_of(kv.Agent("You count.", tools=[of.tool("look", idempotent=True)]), context=small)

    helps = [call("look", what="a"), call("look", what="b"), "helped"]
    small_options = {"model": tiny, "capacity": 1024, "call_format": "hermes"}
    async with opened(HELPS, crash.path) as (large, _), kv.testing.replies(helps, **small_options) as small:
        agent = planner(crash, small)
        whole = await agent.run(await agent.trunk(large), QUESTION)
    second = Crash(crash.crashed)
    if model == "another":
        small_options = dict(SMALL)
    goes_on = helps[2:] if model == "the same" else helps
    async with (
        opened(HELPS[1:], crash.crashed) as (large, journal),
        kv.testing.replies(goes_on, **small_options) as small,
    ):
        run = await (await only_left(journal, large)).resume(planner(second, small))
        assert await left_by(journal, large) == []
        assert [info.status for info in await journal.runs()] == ["finished"] * 2
        assert (large.branches, small.branches) == ([], [])
    assert run.messages == whole.messages
    assert [done for done, _ in second.ran] == (["look b"] if model == "the same" else ["look a", "look b"])
