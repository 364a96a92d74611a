"""Commands in a folder: bounded in time, output and surroundings, and ended as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

import agentkv as kv
from agentkv.workspaces.command import MOST_OUTPUT, CommandResult, run_command
from tests.waiting import NEVER, PATIENCE, SOON, until

pytestmark = pytest.mark.anyio


async def run(folder: Path, command: str, seconds: float = PATIENCE) -> CommandResult:
    return await run_command(folder, command, seconds, folder.parent)


async def test_a_command_runs_in_the_folder(tmp_path: Path) -> None:
    assert await run(tmp_path, "pwd; echo oops >&2; exit 3") == CommandResult(3, f"{tmp_path}\noops\n", False)
    assert (await run(tmp_path, "cat")).output == ""
    assert (await run(tmp_path, "kill -9 $$")).status == -9
    assert (await run(tmp_path, "printf '\\377ok'")).output == "\ufffdok"


async def test_it_is_told_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    said = (await run(tmp_path, "env")).output
    assert "secret" not in said
    assert "PATH=" in said


async def test_a_command_that_takes_too_long_is_killed_with_its_processes(tmp_path: Path) -> None:
    ended = await run(tmp_path, f"sleep {NEVER} & echo $! > child; echo begun; wait", 20 * SOON)
    assert (ended.timed_out, ended.status) == (True, -9)
    child = int((tmp_path / "child").read_text())
    await until(lambda: _is_gone(child))


async def test_so_is_one_whose_wait_is_cancelled(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(run, tmp_path, f"sleep {NEVER} & echo $! > new; mv new child; wait")
        await until((tmp_path / "child").exists)
        group.cancel_scope.cancel()
    child = int((tmp_path / "child").read_text())
    await until(lambda: _is_gone(child))


async def test_what_it_leaves_running_is_killed(tmp_path: Path) -> None:
    ended = await run(tmp_path, f"sleep {NEVER} & echo $! > child")
    assert ended.status == 0
    child = int((tmp_path / "child").read_text())
    await until(lambda: _is_gone(child))


async def test_one_that_leaves_its_group_keeps_nobody_waiting(tmp_path: Path) -> None:
    ended = await run(tmp_path, f"echo before; setsid sleep {NEVER} & echo $! > child")
    assert (ended.status, ended.output) == (0, "before\n")
    child = int((tmp_path / "child").read_text())
    if not _is_gone(child):
        os.kill(child, 9)


async def test_its_output_is_bounded(tmp_path: Path) -> None:
    ended = await run(tmp_path, "echo begin; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo end")
    assert len(ended.output) < MOST_OUTPUT + 100
    assert ended.output.startswith("begin\nx")
    assert ended.output.endswith("x\nend\n")
    assert "bytes left out" in ended.output


async def test_one_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    for folder, command in ((tmp_path / "nowhere", "true"), (tmp_path, "a\0b")):
        with pytest.raises(kv.WorkspaceError, match="cannot be started"):
            await run(folder, command)


def _is_gone(process: int) -> bool:
    """Whether a process has ended; one that nobody waits for may still be in the table."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
