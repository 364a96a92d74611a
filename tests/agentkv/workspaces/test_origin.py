"""The user's folder: a branch is applied to it as a whole or not at all, and never over what the user saved."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import agentkv as kv
from agentkv.workspaces.blobs import BlobStore
from agentkv.workspaces.workspace import Workspace, begin_view

from .conftest import BeginView
from .plain import copy_of

pytestmark = pytest.mark.anyio


def change_all(folder: Path) -> None:
    """Changes of every kind."""
    (folder / "a.txt").write_text("mine\n")
    shutil.rmtree(folder / "sub")
    (folder / "sub").write_text("a file now\n")
    (folder / "new" / "deep").mkdir(parents=True)
    (folder / "new" / "deep" / "c.txt").write_text("three\n")
    (folder / "new" / "d.txt").write_text("four\n")
    (folder / "z").symlink_to("a.txt")


N_WRITES = 4  # of contents that `change_all` makes


def failing(monkeypatch: pytest.MonkeyPatch, at: int, fail: Callable[[], None]) -> None:
    """Does something behind so many contents that are written."""
    write, count = BlobStore.write_to, 0

    def write_to(store: BlobStore, file: int, digest: str) -> None:
        nonlocal count
        count += 1
        if count == at:
            fail()
        write(store, file, digest)

    monkeypatch.setattr(BlobStore, "write_to", write_to)


@pytest.mark.parametrize("at", range(1, N_WRITES + 1))
async def test_a_full_disk_changes_nothing(
    begin: BeginView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    view, project = begin(), tmp_path / "project"
    change_all(view.path)
    before = copy_of(project)

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        failing(patch, at, full)
        with pytest.raises(kv.WorkspaceError, match="No space left"):
            await view.apply()
    assert copy_of(project) == before
    await view.apply()
    assert copy_of(project) == copy_of(view.path)


async def test_permissions_outlive_a_failure(begin: BeginView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "sub").chmod(0o555)
    view = begin()
    (view.path / "sub" / "b.txt").write_text("mine\n")
    before = copy_of(tmp_path / "project")
    failing(monkeypatch, 1, lambda: os.close(-1))
    with pytest.raises(kv.WorkspaceError, match="Bad file descriptor"):
        await view.apply()
    assert copy_of(tmp_path / "project") == before


@pytest.mark.parametrize("at", range(1, N_WRITES + 1))
@pytest.mark.parametrize("name", ["a.txt", "sub/users", "new", "new/d.txt", "z"])
async def test_what_the_user_saves_in_the_middle_is_never_lost(
    begin: BeginView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, name: str
) -> None:
    view, project = begin(), tmp_path / "project"
    change_all(view.path)
    before, saved = copy_of(project), False

    def save() -> None:
        nonlocal saved
        with suppress(OSError):
            (project / name).unlink(missing_ok=True)
            (project / name).write_text("the user's\n")
            saved = True

    failing(monkeypatch, at, save)
    with suppress(kv.WorkspaceError):
        await view.apply()
        if saved:  # behind its being written
            (view.path / name).parent.mkdir(exist_ok=True)
            (view.path / name).unlink(missing_ok=True)
            (view.path / name).write_text("the user's\n")
        assert copy_of(project) == copy_of(view.path)
        return
    if saved:
        assert (project / name).read_text() == "the user's\n"
    now = copy_of(project)
    assert {path: now[path] for path in now if path != name and path in before} == {
        path: before[path] for path in before if path != name
    }


async def test_two_that_apply_at_once_lose_nothing(begin: BeginView, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for turn in range(20):
        views = [begin_view(Workspace(project)), begin_view(Workspace(project, exclude=()))]
        for number, view in enumerate(views):
            (view.path / "a.txt").write_text(f"{turn} {number}\n")
            for other in range(20):
                (view.path / f"{number}-{other}").write_text(f"{view}")
        ready, conflicts = threading.Barrier(2), []

        def apply(view: object, ready: threading.Barrier = ready, conflicts: list[object] = conflicts) -> None:
            ready.wait()
            try:
                view._apply()  # type: ignore[attr-defined]
            except kv.WorkspaceConflict as conflict:
                conflicts.append(conflict)

        threads = [threading.Thread(target=apply, args=(view,)) for view in views]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(conflicts) == 1
        for view in views:
            view.close()
        for path in project.iterdir():
            if path.name[0] in "01":
                path.unlink()
