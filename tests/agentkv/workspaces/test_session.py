"""What is kept while there are views, and nothing behind them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import agentkv as kv
from tests.waiting import until_sync

from .conftest import BeginView

PROCESS = """
import os, signal, sys
from agentkv.workspaces.workspace import Workspace, begin_view

view = begin_view(Workspace(sys.argv[1]))
print(view.path, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def sessions(home: Path) -> list[Path]:
    return list((home / "workspaces").iterdir())


def test_the_last_view_takes_everything_along(begin: BeginView, home: Path) -> None:
    view = begin()
    fork, unused = view.forks(2, 0)
    paths = [view.path, fork.path]
    for each in (view, fork):
        each.close()
        each.close()
    assert not any(path.exists() for path in paths)
    assert len(sessions(home)) == 1
    unused.close()
    until_sync(lambda: not sessions(home))
    for use in (lambda: view.path, lambda: view.mark(0), lambda: view.forks(1, 0)):
        with pytest.raises(kv.BranchClosed, match="is closed"):
            use()  # type: ignore[no-untyped-call]
    assert "closed" in repr(view)
    again = begin()  # in another session
    assert (again.path / "a.txt").exists()


@pytest.mark.parametrize("name", ["killed", "new-killed"])
@pytest.mark.parametrize("has_lock", [True, False])
def test_what_was_left_in_the_middle_is_removed(begin: BeginView, home: Path, name: str, has_lock: bool) -> None:
    """Of beginning, or of being removed."""
    left = home / "workspaces" / name
    (left / "views" / "one" / "project").mkdir(parents=True)
    if has_lock:
        (left / "lock").touch()
    os.utime(left, (0, 0))
    (home / "workspaces" / "new-now").mkdir()
    os.utime(home / "workspaces" / "new-now", (2**33, 2**33))
    begin()
    until_sync(lambda: not left.exists())
    assert (home / "workspaces" / "new-now").exists()


FORK = """
import gc, os, sys
from agentkv.workspaces.workspace import Workspace, begin_view

view = begin_view(Workspace(sys.argv[1]))
path = view.path
if child := os.fork():
    os.waitpid(child, 0)
    other = begin_view(Workspace(sys.argv[2]))
    other.session._remover.join(1)  # what was left is removed by then
    print(path.exists())
else:
    del view
    gc.collect()
    sys.exit()
"""


def test_a_fork_of_the_process_takes_no_files_along(home: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-c", FORK, str(tmp_path / "one"), str(tmp_path / "two")]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == "True\n"


def test_views_that_nobody_has_are_removed(begin: BeginView, home: Path) -> None:
    view = begin()
    forks = view.forks(3, 0)
    paths = [fork.path for fork in forks]
    del forks
    gc.collect()
    assert not any(path.exists() for path in paths)
    assert view.path.exists()


@pytest.mark.parametrize("end", ["killed", "ended"])
def test_what_a_process_leaves_is_removed(begin: BeginView, home: Path, tmp_path: Path, end: str) -> None:
    (tmp_path / "other").mkdir()
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "other"), end]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == (-signal.SIGKILL if end == "killed" else 0)
    left = Path(ended.stdout.strip())
    assert left.exists() == (end == "killed")
    view = begin()  # its session removes what was left
    until_sync(lambda: not left.exists())
    until_sync(lambda: len(sessions(home)) == 1)
    assert view.path.exists()


def test_a_folder_that_holds_the_views_does_not_hold_itself(begin: BeginView, home: Path) -> None:
    begin()
    (home / "mine").write_text("mine")
    from agentkv.workspaces.workspace import Workspace, begin_view

    view = begin_view(Workspace(home))
    assert {path.name for path in view.path.iterdir()} == {"mine"}
    view.close()


def test_where_no_files_can_be_kept_is_said(begin: BeginView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "file"))
    with pytest.raises(kv.WorkspaceError, match="set AGENTKV_HOME to a folder that can be written"):
        begin()
