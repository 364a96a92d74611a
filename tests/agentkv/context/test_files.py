"""Files, conversation and cache of a branch move together."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

import agentkv as kv
from agentkv.testing.replies import Reply
from tests.waiting import until

pytestmark = pytest.mark.anyio
call = kv.testing.call


@pytest.fixture
def project(tmp_path: Path, user_home: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("one\n")
    return project


@pytest.fixture
async def ctx(folder: Path) -> AsyncIterator[kv.Context]:
    async with kv.Context.open(folder, threads=1, capacity=512) as ctx:
        yield ctx


def files_of(branch: kv.Branch) -> dict[str, str]:
    assert branch.workspace is not None
    return {path.name: path.read_text() for path in branch.workspace.path.iterdir() if path.is_file()}


def write(branch: kv.Branch, **files: str) -> None:
    assert branch.workspace is not None
    for name, text in files.items():
        (branch.workspace.path / name).write_text(text)


async def test_forks_do_not_see_each_others_files(ctx: kv.Context, project: Path) -> None:
    trunk = await ctx.branch([1, 2, 3], workspace=kv.Workspace(project))
    write(trunk, b="trunk")
    one, other = await trunk.fork(2)
    write(one, b="one")
    write(other, c="other")
    write(trunk, b="later")
    assert files_of(one) == {"a.txt": "one\n", "b": "one"}
    assert files_of(other) == {"a.txt": "one\n", "b": "trunk", "c": "other"}
    assert files_of(trunk) == {"a.txt": "one\n", "b": "later"}
    assert os.listdir(project) == ["a.txt"]
    assert (await ctx.branch([1])).workspace is None


async def test_a_rollback_takes_files_back(ctx: kv.Context, project: Path) -> None:
    branch = await ctx.branch([1, 2, 3], workspace=kv.Workspace(project))
    mark = branch.mark()
    write(branch, b="first")
    same_place = branch.mark()
    await branch.extend([4, 5])
    write(branch, b="second", c="second")
    later = branch.mark("later")
    await branch.extend([6])
    write(branch, b="third")
    await branch.rollback(later)
    assert files_of(branch) == {"a.txt": "one\n", "b": "second", "c": "second"}
    await branch.rollback(4)
    assert files_of(branch) == {"a.txt": "one\n", "b": "first"}
    await branch.rollback(mark)
    assert files_of(branch) == {"a.txt": "one\n"}
    await branch.rollback(same_place)
    assert files_of(branch) == {"a.txt": "one\n", "b": "first"}
    write(branch, b="fourth")
    with pytest.raises(kv.InvalidRollback):
        await branch.rollback(later)
    assert files_of(branch) == {"a.txt": "one\n", "b": "fourth"}


async def test_adopt_brings_the_files(ctx: kv.Context, project: Path) -> None:
    trunk = await ctx.branch([1, 2, 3], workspace=kv.Workspace(project))
    one, other, third = await trunk.fork(3)
    await one.extend([7])
    write(one, **{"a.txt": "one's"})
    write(other, **{"a.txt": "other's"})
    write(third, b="third's")
    await trunk.adopt(one)
    assert (files_of(trunk), trunk.tokens) == ({"a.txt": "one's"}, [1, 2, 3, 7])
    with pytest.raises(kv.WorkspaceConflict, match=r"a\.txt: both branches changed that") as error:
        await trunk.adopt(other)
    assert error.value.paths == ["a.txt"]
    assert (files_of(trunk), trunk.tokens) == ({"a.txt": "one's"}, [1, 2, 3, 7])
    await trunk.adopt(third)
    assert (files_of(trunk), trunk.tokens) == ({"a.txt": "one's", "b": "third's"}, [1, 2, 3])
    await trunk.adopt(trunk)
    assert files_of(trunk) == {"a.txt": "one's", "b": "third's"}


async def test_adopting_between_branches_with_and_without_files(ctx: kv.Context, project: Path, tmp_path: Path) -> None:
    bare = await ctx.branch([1, 2])
    with_files = await ctx.branch([3, 4], workspace=kv.Workspace(project))
    write(with_files, b="mine")
    await with_files.adopt(bare)
    assert files_of(with_files) == {"a.txt": "one\n", "b": "mine"}
    await bare.adopt(with_files)
    write(with_files, b="later")
    assert files_of(bare) == {"a.txt": "one\n", "b": "mine"}
    (tmp_path / "elsewhere").mkdir()
    elsewhere = await ctx.branch([5], workspace=kv.Workspace(tmp_path / "elsewhere"))
    with pytest.raises(kv.InvalidInput, match="different workspaces"):
        await elsewhere.adopt(with_files)
    assert elsewhere.tokens == [5]


@pytest.mark.parametrize("verb", ["rollback", "adopt", "fork"])
async def test_a_cancellation_parts_no_tokens_from_their_files(ctx: kv.Context, project: Path, verb: str) -> None:
    trunk = await ctx.branch([1, 2, 3], workspace=kv.Workspace(project))
    mark = trunk.mark()
    fork = await trunk.fork()
    await fork.extend([7])
    write(fork, b="fork")
    await trunk.extend([4])
    write(trunk, b="trunk")
    wanted = {
        "rollback": ([1, 2, 3], {"a.txt": "one\n"}),
        "adopt": ([1, 2, 3, 7], {"a.txt": "one\n", "b": "fork"}),
        "fork": ([1, 2, 3, 4], {"a.txt": "one\n", "b": "trunk"}),
    }[verb]
    before = trunk.tokens, files_of(trunk)
    for delay in range(12):
        if verb == "adopt":
            await trunk.rollback(mark)
            before = trunk.tokens, files_of(trunk)
        async with anyio.create_task_group() as group:
            group.start_soon(getattr(trunk, verb), *{"rollback": [mark], "adopt": [fork], "fork": [2]}[verb])
            for _ in range(delay):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert (trunk.tokens, files_of(trunk)) in (before, wanted)


async def test_closing_removes_the_files(ctx: kv.Context, project: Path) -> None:
    async with await ctx.branch([1, 2], workspace=kv.Workspace(project)) as branch:
        forks = await branch.fork(3)
        paths = [files.workspace.path for files in forks if files.workspace]
        await forks[0].close()
        await ctx.keep(branch, forks[1])
        assert [path.exists() for path in paths] == [False, True, False]
        del forks
        gc.collect()
        assert [path.exists() for path in paths] == [False, False, False]
        view = branch.workspace
    assert view is not None
    assert view.closed
    with pytest.raises(kv.BranchClosed, match="they are removed"):
        await view.diff()


async def test_so_does_leaving_the_context(folder: Path, project: Path, tmp_path: Path) -> None:
    async with kv.Context.open(folder, threads=1, capacity=64) as ctx:
        branch = await ctx.branch([1, 2], workspace=kv.Workspace(project))
        assert branch.workspace is not None
        path = branch.workspace.path
    assert not path.exists()
    await until(lambda: not list((tmp_path / "agentkv" / "workspaces").iterdir()))


async def test_a_branch_that_does_not_come_to_be_leaves_no_files(
    ctx: kv.Context, project: Path, tmp_path: Path
) -> None:
    workspace = kv.Workspace(project)
    with pytest.raises(kv.ContextFull):
        await ctx.branch([1] * 600, workspace=workspace)
    await until(lambda: not list((tmp_path / "agentkv" / "workspaces").iterdir()))
    trunk = await ctx.branch([1, 2], workspace=workspace)
    with pytest.raises(kv.TooManyBranches):
        await trunk.fork(5000)
    assert trunk.workspace is not None
    assert len(trunk.workspace.session._live) == 1
    with anyio.CancelScope() as scope:
        scope.cancel()
        await trunk.fork(3)
    gc.collect()
    assert len(trunk.workspace.session._live) == 1
    for wrong in ("project", project, 1):
        with pytest.raises(kv.InvalidInput, match=r"kv\.Workspace\(folder\)"):
            await ctx.branch([1], workspace=wrong)  # type: ignore[arg-type]


def writer(name: str = "put", **options: object) -> kv.Tool[..., ..., ...]:  # type: ignore[type-arg]
    @kv.tool(name=name, early=False, **options)
    def put(context: kv.RunContext[object], file: str, text: str) -> str:
        """Writes a file."""
        if file == "fails":
            raise RuntimeError("no")
        (context.workspace / file).write_text(text)
        return "done"

    return put


async def talk(script: list[Reply], project: Path, **options: object) -> AsyncIterator[tuple[kv.Agent, kv.Branch]]:  # type: ignore[type-arg]
    async with kv.testing.replies(script, threads=1, capacity=4096) as ctx:
        agent = kv.Agent("You help.", tools=[writer(**options)])
        yield agent, await agent.trunk(ctx, workspace=kv.Workspace(project))


async def test_a_turn_works_on_the_files_of_its_branch(project: Path) -> None:
    async for agent, trunk in talk([call("put", file="b", text="mine"), "Done."], project):
        fork = await trunk.fork()
        await agent.run(fork, "Do it.")
        assert files_of(fork) == {"a.txt": "one\n", "b": "mine"}
        assert files_of(trunk) == {"a.txt": "one\n"}
        await fork.rollback(len(trunk))  # to the beginning of the turn
        assert files_of(fork) == {"a.txt": "one\n"}


async def test_a_turn_that_fails_takes_its_files_back(project: Path) -> None:
    script: list[Reply] = [call("put", file="a.txt", text="mine"), call("put", file="fails", text="")]
    async for agent, trunk in talk(script, project, on_error="raise"):
        write(trunk, own="before")
        with pytest.raises(kv.ToolFailed):
            await agent.run(trunk, "Do it.")
        assert files_of(trunk) == {"a.txt": "one\n", "own": "before"}


async def test_with_keep_they_stay(project: Path) -> None:
    script: list[Reply] = [call("put", file="a.txt", text="mine"), call("put", file="fails", text="")]
    async for agent, trunk in talk(script, project, on_error="raise"):
        with pytest.raises(kv.ToolFailed):
            await agent.run(trunk, "Do it.", keep_partial=True)
        assert files_of(trunk) == {"a.txt": "mine"}


async def test_a_cancelled_turn_takes_its_files_back(project: Path) -> None:
    async with kv.testing.replies([call("put", file="b", text="mine"), call("wait")], threads=1, capacity=4096) as ctx:
        waits = anyio.Event()

        @kv.tool
        async def wait() -> None:
            """Waits."""
            waits.set()
            await anyio.sleep_forever()

        agent = kv.Agent("You help.", tools=[writer(), wait])
        trunk = await agent.trunk(ctx, workspace=kv.Workspace(project))
        async with anyio.create_task_group() as group:
            group.start_soon(agent.run, trunk, "Do it.")
            await waits.wait()
            assert files_of(trunk) == {"a.txt": "one\n", "b": "mine"}
            group.cancel_scope.cancel()
        assert files_of(trunk) == {"a.txt": "one\n"}


async def test_a_turn_that_is_forked_in_flight_is_forked_with_its_files(project: Path) -> None:
    script = {"": [call("put", file="b", text="mine"), call("wait")], "x": ["Done."]}
    goes_on, waits = anyio.Event(), anyio.Event()

    @kv.tool(on_fork="share")
    async def wait() -> str:
        """Waits."""
        waits.set()
        await goes_on.wait()
        return "waited"

    async with kv.testing.replies([*script[""], "Done.", "Done."], threads=1, capacity=4096) as ctx:
        agent = kv.Agent("You help.", tools=[writer(), wait])
        trunk = await agent.trunk(ctx, workspace=kv.Workspace(project))
        run = agent.start(trunk, "Do it.")
        await waits.wait()
        (fork,) = await run.fork(1)
        write(fork.branch, b="the fork's")
        goes_on.set()
        await run
        await fork
        assert files_of(trunk)["b"] == "mine"
        assert files_of(fork.branch)["b"] == "the fork's"


@pytest.mark.parametrize("fork", [True, False])
async def test_a_helper_works_on_the_files_of_its_caller(project: Path, fork: bool) -> None:
    script: list[Reply] = [call("ask", task="write b"), call("put", file="b", text="helper"), "Helped.", "Done."]
    async with kv.testing.replies(script, threads=1, capacity=4096) as ctx:
        helper = kv.Agent("You help.", tools=[writer()])
        agent = kv.Agent("You ask.", tools=[helper.as_tool("ask", "Asks for help.", fork=fork)])
        trunk = await agent.trunk(ctx, workspace=kv.Workspace(project))
        run = await agent.run(trunk, "Do it.")
        assert run.calls[0].status == "done"
        assert files_of(trunk) == {"a.txt": "one\n", "b": "helper"}


async def test_a_tool_of_a_branch_without_files_is_told(project: Path) -> None:
    async with kv.testing.replies([call("put", file="b", text="x"), "Done."], threads=1, capacity=4096) as ctx:
        agent = kv.Agent("You help.", tools=[writer()])
        run = await agent.run(await agent.trunk(ctx), "Do it.")
        assert "the branch has no workspace" in (run.calls[0].error or "")
