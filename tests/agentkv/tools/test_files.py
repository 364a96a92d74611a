"""The tools for files, as a model calls them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv.workspaces import files as confined
from tests.waiting import NEVER, SOON, until

pytestmark = pytest.mark.anyio
call = kv.testing.call


@pytest.fixture
def project(tmp_path: Path, user_home: Path) -> Path:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "a.txt").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    (project / "out").symlink_to(tmp_path)
    return project


async def told(project: Path, *calls: Any, **options: Any) -> list[kv.CallRecord]:
    """What the calls of a turn came to, one after another."""
    workspace = kv.Workspace(project)
    async with kv.testing.replies([*calls, "Done."], threads=1, capacity=8192) as ctx:
        agent = kv.Agent("You help.", tools=kv.tools.files(workspace, **options), max_rounds=len(calls) + 1)
        branch = await agent.trunk(ctx, workspace=workspace)
        return list((await agent.run(branch, "Do it.", approve=lambda asked: False)).calls)


async def contents(project: Path, *calls: Any, **options: Any) -> list[str]:
    return [record.content for record in await told(project, *calls, **options)]


async def test_files_are_read_in_parts(project: Path) -> None:
    whole, part, end = await contents(
        project,
        call("read_file", path="a.txt"),
        call("read_file", path="a.txt", first_line=2, max_lines=2),
        call("read_file", path="a.txt", first_line=10),
    )
    assert whole == (project / "a.txt").read_text()
    assert part == "line 2\nline 3\n[lines 2 to 3 of 11]"
    assert end == "line 10\n\n[lines 10 to 11 of 11]"


async def test_files_are_written_edited_listed_and_searched(project: Path) -> None:
    assert await contents(
        project,
        call("write_file", path="sub/new.txt", content="one\ntwo\n"),
        call("edit_file", path="sub/new.txt", old="two", new="2"),
        call("list_files"),
        call("list_files", path="sub"),
        call("search", pattern="^(one|2)$"),
        call("search", pattern="nothing like that"),
        call("write_file", path="sub/new.txt", content="x"),
    ) == [
        "made sub/new.txt",
        "changed sub/new.txt at line 2",
        "a.txt\nout\nsub/",
        "new.txt",
        "sub/new.txt:1: one\nsub/new.txt:2: 2",
        "no line matches",
        "replaced sub/new.txt",
    ]
    assert not (project / "sub" / "new.txt").exists()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {"path": "out/secret"}),
        ("write_file", {"path": "../secret", "content": "x"}),
        ("edit_file", {"path": "/secret", "old": "x", "new": "y"}),
        ("list_files", {"path": "out"}),
        ("search", {"pattern": "x", "path": ".."}),
    ],
)
async def test_a_way_out_is_told_to_the_model(project: Path, name: str, arguments: dict[str, str]) -> None:
    (project.parent / "secret").write_text("x")
    (record,) = await told(project, call(name, **arguments))
    assert record.status == "retry"
    assert "leads out of the workspace" in record.content
    assert (project.parent / "secret").read_text() == "x"


async def test_calls_of_one_message_are_made_in_its_order(project: Path) -> None:
    edits = [call("edit_file", path="a.txt", old=f"line {n}\n", new=f"LINE {n}\n") for n in range(1, 9)]
    *_, count, read, removed, again = await contents(
        project,
        [
            *edits,
            call("run_command", command="grep -c LINE a.txt"),
            call("read_file", path="a.txt", max_lines=1),
            call("run_command", command="rm a.txt"),
            call("search", pattern="LINE 8"),
        ],
    )
    assert (count, read) == ("exit status 0\n8\n", "LINE 1\n[lines 1 to 1 of 11]")
    assert (removed, again) == ("exit status 0\n", "no line matches")


async def test_a_cancelled_turn_waits_for_a_write(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, goes_on, workspace = threading.Event(), threading.Event(), kv.Workspace(project)
    write_all = confined.write_all

    def slow(file: int, content: bytes) -> None:
        began.set()
        goes_on.wait()
        write_all(file, content)

    monkeypatch.setattr(confined, "write_all", slow)
    async with kv.testing.replies([call("write_file", path="late", content="x")], threads=1, capacity=8192) as ctx:
        agent = kv.Agent("You help.", tools=kv.tools.files(workspace))
        branch = await agent.trunk(ctx, workspace=workspace)
        async with anyio.create_task_group() as group:
            group.start_soon(agent.run, branch, "Do it.")
            await until(began.is_set)
            group.cancel_scope.cancel()
            goes_on.set()
        assert branch.workspace is not None
        assert "late" not in os.listdir(branch.workspace.path)


async def test_answers_are_cut(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["agentkv.tools.files"], "MOST_TEXT", 6)
    read, listed = await contents(project, call("read_file", path="a.txt"), call("list_files"))
    assert read == "line 1\n[65 more characters; ask for less at once]"
    assert listed == "a.txt\n\n[8 more characters; ask for less at once]"


async def test_commands_run_among_the_branchs_files(project: Path) -> None:
    first, second, third = await contents(
        project,
        call("run_command", command="echo hello > made; basename $(pwd); exit 2"),
        call("read_file", path="made"),
        call("run_command", command="git rev-parse --show-toplevel 2>/dev/null || echo none"),
    )
    assert first == "exit status 2\nproject\n"
    assert second == "hello\n"
    assert third == "exit status 0\nnone\n"


async def test_a_command_has_its_time(project: Path) -> None:
    (said,) = await contents(project, call("run_command", command=f"echo begun; sleep {NEVER}"), seconds=20 * SOON)
    assert said == "killed after 1 s\nbegun\n"


async def test_a_person_may_decide_on_commands(project: Path) -> None:
    (record,) = await told(project, call("run_command", command="echo x"), approve=True)
    assert record.status == "denied"


async def test_without_commands_there_are_none(project: Path) -> None:
    names = [tool.name for tool in kv.tools.files(kv.Workspace(project), commands=False)]
    assert names == ["read_file", "write_file", "edit_file", "list_files", "search"]


@pytest.mark.parametrize(("other", "said"), [(None, "has no workspace"), ("other", "the tools are for")])
async def test_a_branch_of_another_folder_ends_the_turn(project: Path, other: str | None, said: str) -> None:
    (project / "other").mkdir()
    workspace = None if other is None else kv.Workspace(project / other)
    async with kv.testing.replies([call("list_files")], threads=1, capacity=8192) as ctx:
        agent = kv.Agent("You help.", tools=kv.tools.files(kv.Workspace(project)))
        with pytest.raises(kv.ToolFailed, match=said):
            await agent.run(await agent.trunk(ctx, workspace=workspace), "Do it.")


@pytest.mark.parametrize(
    ("given", "said"),
    [({"workspace": "project"}, "kv.Workspace"), ({"seconds": 0}, "seconds"), ({"commands": 1}, "commands")],
)
def test_what_makes_no_tools(project: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(kv.InvalidInput, match=said):
        kv.tools.files(**{"workspace": kv.Workspace(project), **given})
