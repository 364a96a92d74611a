"""Files of branches in a journal: after a crash they are as the turn left them, and nothing stays that nobody needs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv.journal import reading
from agentkv.journal.files import folder_of
from agentkv.journal.turns import JournalTurnLog
from agentkv.workspaces.view import WorkspaceView
from tests.waiting import until

from .crashes import copied, left_by, only_left, opened
from .files_process import change, wanted
from .talks import Talker

pytestmark = pytest.mark.anyio
call = kv.testing.call


@pytest.fixture(autouse=True)
def project(tmp_path: Path, user_home: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a").write_text("begin;")
    return tmp_path / "project"


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def files_of(branch: kv.Branch) -> dict[str, str]:
    assert branch.workspace is not None
    return files_in(branch.workspace.path)


@kv.tool(name="change", early=False)
def change_tool(context: kv.RunContext[Any], what: str, file: str, text: str) -> str:
    """Changes a file."""
    change(context.workspace, what, file, text)
    return "done"


def agent_of(*tools: Any) -> kv.Agent[None, str]:
    return kv.Agent("You are Nano.", tools=[change_tool, *tools])


async def tracked(ctx: kv.Context, journal: kv.Journal, project: Path) -> kv.Branch:
    """A branch that the journal has as "talk", after a turn."""
    branch = await agent_of().trunk(ctx, workspace=kv.Workspace(project))
    await journal.track(branch, "talk")
    await agent_of().run(branch, "Do it.")
    return branch


CHANGE = call("change", what="write", file="b", text="mine")
LATER = call("change", what="append", file="b", text=", more")


async def test_a_tracked_branch_has_its_files_in_another_process(tmp_path: Path, project: Path) -> None:
    path, agent = tmp_path / "runs.db", agent_of()
    async with opened([CHANGE, "Done."], path) as (ctx, journal):
        branch = await tracked(ctx, journal, project)
    async with opened([LATER, "Done."], path) as (ctx, journal):
        branch = await journal.branch(ctx, "talk")
        assert files_of(branch) == {"a": "begin;", "b": "mine"}
        assert (await branch.workspace.diff()).added == ("b",)  # type: ignore[union-attr]
        fresh = await ctx.branch("x", workspace=kv.Workspace(project))
        await agent.run(branch, "More.")
        await fresh.adopt(branch)  # both come from the folder as it was
        assert files_of(fresh) == {"a": "begin;", "b": "mine, more"}
        (project / "a").write_text("the user's")
        await branch.workspace.apply()  # type: ignore[union-attr]
    assert files_in(project) == {"a": "the user's", "b": "mine, more"}


async def test_what_was_applied_is_applied_in_another_process(tmp_path: Path, project: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened([CHANGE, "Done."], path) as (ctx, journal):
        branch = await tracked(ctx, journal, project)
        assert await branch.workspace.apply() == ["b"]  # type: ignore[union-attr]
    (project / "b").write_text("the user's")
    async with opened([], path) as (ctx, journal):
        branch = await journal.branch(ctx, "talk")
        assert (await branch.workspace.diff()).added == ()  # type: ignore[union-attr]
        assert await branch.workspace.apply() == []  # type: ignore[union-attr]
    assert files_in(project) == {"a": "begin;", "b": "the user's"}


async def test_names_that_are_no_text_come_back(tmp_path: Path, project: Path) -> None:
    path = tmp_path / "runs.db"
    (project / "\udc80").write_text("mine")
    (project / "link").symlink_to("\udc81")
    async with opened([CHANGE, "Done."], path) as (ctx, journal):
        branch = await tracked(ctx, journal, project)
    async with opened([], path) as (ctx, journal):
        branch = await journal.branch(ctx, "talk")
        assert files_of(branch) == {"a": "begin;", "b": "mine", "\udc80": "mine"}
        assert os.readlink(branch.workspace.path / "link") == "\udc81"  # type: ignore[union-attr]


async def test_a_journal_in_the_folder_is_no_part_of_it(project: Path) -> None:
    path, agent, counts = project / "runs.db", agent_of(), []
    for _ in range(3):
        async with opened([CHANGE, "Done."], path) as (ctx, _):
            branch = await agent.trunk(ctx, workspace=kv.Workspace(project))
            await agent.run(branch, "Do it.")
            assert files_of(branch) == {"a": "begin;", "b": "mine"}
        counts.append(len(files_in(folder_of(path))))
    assert len(set(counts)) == 1


async def test_what_the_user_changed_meanwhile_is_a_conflict(tmp_path: Path, project: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened([call("change", what="write", file="a", text="mine"), "Done."], path) as (ctx, journal):
        branch = await tracked(ctx, journal, project)
    (project / "a").write_text("the user's")
    async with opened([], path) as (ctx, journal):
        branch = await journal.branch(ctx, "talk")
        with pytest.raises(kv.WorkspaceConflict, match="changed in"):
            await branch.workspace.apply()  # type: ignore[union-attr]


def crashed(path: Path) -> Path:
    """The journal with its files, as a process that ends now leaves it."""
    copy = copied(path, "crashed.db")
    shutil.copytree(folder_of(path), folder_of(copy))
    return copy


def ended_calls(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("SELECT count(*) FROM calls WHERE ended IS NOT NULL").fetchone()[0])


async def left_in(path: Path, project: Path, script: list[Any], n_calls: int) -> Path:
    """The journal of a process that ended in a call "end" of a turn, behind so many calls."""
    journals: list[Path] = []

    @kv.tool(name="end", early=False)
    async def end() -> str:
        """Ends the process, once the other calls have ended."""
        await until(lambda: ended_calls(path) == n_calls)
        journals.append(crashed(path))
        return "went on"

    agent = agent_of(end)
    async with opened([*script, "Done."], path) as (ctx, journal):
        branch = await agent.trunk(ctx, workspace=kv.Workspace(project))
        assert branch.workspace is not None
        (branch.workspace.path / "before").write_text("the turn")
        await journal.track(branch, "talk")
        await agent.run(branch, "Do it.")
    return journals[0]


@kv.tool(name="end", early=False)
def goes_on() -> str:
    """Ends no process."""
    return "went on"


async def test_a_turn_goes_on_with_what_its_calls_did(tmp_path: Path, project: Path) -> None:
    path = await left_in(tmp_path / "runs.db", project, [CHANGE, [LATER, call("end")]], 2)
    async with opened(["Done."], path) as (ctx, journal):
        left = await only_left(journal, ctx)
        await left.resume(agent_of(goes_on))
        branch = await journal.branch(ctx, "talk")
        assert files_of(branch) == {"a": "begin;", "before": "the turn", "b": "mine, more"}


async def test_a_resumed_turn_that_fails_takes_its_files_back(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last: list[dict[str, str]] = []

    def close(view: WorkspaceView) -> None:
        last.append(files_in(view.path))
        view._finalizer()

    path = await left_in(tmp_path / "runs.db", project, [CHANGE, [LATER, call("end")]], 2)
    async with opened([], path) as (ctx, journal):
        left = await only_left(journal, ctx)
        monkeypatch.setattr(WorkspaceView, "close", close)

        @kv.tool(name="end", on_error="raise", early=False, idempotent=True)
        def look(context: kv.RunContext[Any]) -> None:
            """Looks, and fails."""
            assert files_of(context.branch)["b"] == "mine, more"
            raise RuntimeError("no")

        with pytest.raises(kv.ToolFailed):
            await left.resume(agent_of(look))
        assert last[0] == {"a": "begin;", "before": "the turn"}


async def test_what_is_dropped_leaves_no_contents(tmp_path: Path, project: Path) -> None:
    path, agent = tmp_path / "runs.db", agent_of()
    async with opened([CHANGE, LATER, "Done."], path) as (ctx, journal):
        branch = await agent.trunk(ctx, workspace=kv.Workspace(project))
        await agent.run(branch, "Do it.")
        contents = [file.read_text() for file in folder_of(path).rglob("*") if file.is_file() and len(file.name) > 10]
        assert {"begin;", "mine", "mine, more"} <= set(contents)
        (run,) = await journal.runs()
        await journal.drop(run.id)
    contents = [file.read_text() for file in folder_of(path).rglob("*") if file.is_file() and len(file.name) > 10]
    assert sorted(contents) == ["begin;", "mine, more"]  # of the branch's present state
    reading.remove_runs(path, [])


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE file_versions SET changes = replace(changes, '\"b\"', '\"../b\"')",
        "UPDATE file_versions SET changes = replace(changes, '\"b\"', '\"/b\"')",
        "UPDATE file_versions SET changes = replace(changes, '\"file\"', '\"device\"')",
        "UPDATE file_versions SET changes = 'x'",
        "UPDATE file_versions SET base = id",
        "DELETE FROM file_versions",
        None,
    ],
)
async def test_damaged_files_are_refused(tmp_path: Path, project: Path, damage: str | None) -> None:
    path = tmp_path / "runs.db"
    async with opened([CHANGE, "Done."], path) as (ctx, journal), await tracked(ctx, journal, project):
        pass
    if damage is None:
        for file in [file for file in folder_of(path).rglob("*") if file.is_file()]:
            file.unlink()
    else:
        with sqlite3.connect(path) as connection:
            connection.execute(damage)
    async with opened([], path) as (ctx, journal):
        with pytest.raises((kv.JournalError, kv.WorkspaceError)):
            await journal.branch(ctx, "talk")
    assert not any("b" in names for _, _, names in os.walk(tmp_path))


async def test_a_journal_of_an_older_version_takes_files(tmp_path: Path, project: Path) -> None:
    path, agent = tmp_path / "runs.db", agent_of()
    async with opened([], path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE file_versions")
        connection.execute("DROP TABLE run_files")
    async with opened([CHANGE, "Done."], path) as (ctx, journal):
        branch = await agent.trunk(ctx, workspace=kv.Workspace(project))
        await agent.run(branch, "Do it.")
        assert await left_by(journal, ctx) == []


@pytest.mark.parametrize("end", ["under way", "finished"])
@pytest.mark.parametrize("fork", [True, False])
async def test_what_a_helper_did_is_there_after_a_crash(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, end: str, fork: bool
) -> None:
    path, ended = tmp_path / "runs.db", JournalTurnLog.ended

    async def ends(log: JournalTurnLog, index: int, request: kv.CallRequest, record: kv.CallRecord) -> None:
        if (request.name == "ask") == (end == "finished"):
            await ended(log, index, request, record) if request.name == "change" else None
            crashed(path)
        await ended(log, index, request, record)

    helper = kv.Agent("You help.", tools=[change_tool])
    agent = kv.Agent("You ask.", tools=[helper.as_tool("ask", "Asks.", fork=fork)])
    async with opened([call("ask", task="do it"), CHANGE, "Helped.", "Done."], path) as (ctx, journal):
        branch = await agent.trunk(ctx, workspace=kv.Workspace(project))
        await journal.track(branch, "talk")
        monkeypatch.setattr(JournalTurnLog, "ended", ends)
        await agent.run(branch, "Do it.")
        monkeypatch.setattr(JournalTurnLog, "ended", ended)
    path = path.with_name("crashed.db")
    async with opened(["Helped.", "Done."][end == "finished" :], path) as (ctx, journal):
        left = await only_left(journal, ctx)
        run = await left.resume(agent)
        assert [record.result for record in run.calls] == ["Helped."]
        assert files_of(await journal.branch(ctx, "talk")) == {"a": "begin;", "b": "mine"}


@pytest.fixture
def talker(project: Path) -> Iterator[Talker]:
    talker = Talker("tests.agentkv.journal.files_process")
    try:
        yield talker
    finally:
        talker.stop()


def killed(talker: Talker, folder: Path, seed: int) -> int:
    """Kills the turns of a seed at random points until they come to their end, which is that of undisturbed ones.
    Returns how often."""
    draw, kills = random.Random(seed), 0
    (folder / "project").mkdir(parents=True)
    (folder / "project" / "a").write_text("begin;")
    while status := talker.run(folder, seed, draw.randrange(1, 50) if kills < 3 else 0):
        assert status == -signal.SIGKILL
        kills += 1
    assert files_in(folder / "project") == wanted(seed)
    return kills


def test_killed_processes_lose_no_change_to_a_file(talker: Talker, tmp_path: Path) -> None:
    assert sum(killed(talker, tmp_path / str(seed), seed) for seed in range(5)) >= 5


@pytest.mark.soak
def test_so_they_do_for_long(
    talker: Talker, tmp_path: Path, soak_count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first = int(os.environ.get("AGENTKV_SEED", "1000"))
    kills = [killed(talker, tmp_path / str(seed), seed) for seed in range(first, first + soak_count // 20)]
    with capsys.disabled():
        print(f"\n{len(kills)} talks, {sum(kills)} kills")
