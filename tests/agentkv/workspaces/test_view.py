"""Views of a workspace: copies of their own, versions, and the user's folder."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import agentkv as kv
from agentkv.workspaces import blobs as blobs_module
from agentkv.workspaces.blobs import BlobStore
from agentkv.workspaces.entries import FileEntry
from agentkv.workspaces.tree import DEEPEST, Tree
from agentkv.workspaces.version import Version

from .conftest import BeginView
from .plain import copy_of

pytestmark = pytest.mark.anyio


def test_a_view_is_a_copy(begin: BeginView, tmp_path: Path) -> None:
    view = begin()
    assert copy_of(view.path) == copy_of(tmp_path / "project")
    assert view.path.name == "project"
    (view.path / "a.txt").write_text("mine\n")
    assert (tmp_path / "project" / "a.txt").read_text() == "one\n"


def test_a_fork_copies_nothing_before_it_is_used(begin: BeginView) -> None:
    view = begin()
    (view.path / "a.txt").write_text("mine\n")
    (fork,) = view.forks(1, 0)
    (view.path / "a.txt").write_text("later\n")
    assert len(list(view.session.folder_of_views.iterdir())) == 1
    assert (fork.path / "a.txt").read_text() == "mine\n"
    fork.close()


async def test_the_diff_is_of_what_changed_since_the_branch_began(begin: BeginView) -> None:
    view = begin()
    assert not await view.diff()
    (view.path / "a.txt").write_text("one\nmore\n")
    (view.path / "sub" / "b.txt").unlink()
    (view.path / "new").mkdir()
    (view.path / "new" / "c.txt").write_text("three")
    (view.path / "bytes").write_bytes(b"\0\1")
    (view.path / "link").symlink_to("a.txt")
    diff = await view.diff()
    assert (diff.added, diff.modified, diff.deleted) == (("bytes", "link", "new/c.txt"), ("a.txt",), ("sub/b.txt",))
    assert "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1,2 @@\n one\n+more\n" in diff.text
    assert "Binary files a/bytes and b/bytes differ\n" in str(diff)
    assert "+three\n\\ No newline at end of file\n" in diff.text
    (fork,) = view.forks(1, 0)
    assert not await fork.diff()
    fork.close()


async def test_a_view_is_applied_where_nobody_else_changed_the_same(begin: BeginView, tmp_path: Path) -> None:
    view, project = begin(), tmp_path / "project"
    (view.path / "a.txt").write_text("mine\n")
    (view.path / "run.sh").write_text("true\n")
    (view.path / "run.sh").chmod(0o755)
    (project / "sub" / "b.txt").write_text("the user's\n")
    assert await view.apply() == ["a.txt", "run.sh"]
    assert (project / "a.txt").read_text() == "mine\n"
    assert stat.S_IMODE((project / "run.sh").stat().st_mode) == 0o755
    assert (project / "sub" / "b.txt").read_text() == "the user's\n"
    assert not await view.diff()
    (view.path / "a.txt").write_text("mine again\n")
    (project / "a.txt").write_text("the user's\n")
    before = copy_of(project)
    with pytest.raises(kv.WorkspaceConflict, match=r"a\.txt: changed in .* as well") as error:
        await view.apply()
    assert error.value.paths == ["a.txt"]
    assert copy_of(project) == before


async def test_a_file_that_the_user_saves_at_the_last_moment_is_kept(
    begin: BeginView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, project = begin(), tmp_path / "project"
    (view.path / "a.txt").write_text("mine\n")
    write = Tree.write_carefully

    def saved_before(tree: Tree, *given: object) -> None:
        (project / "a.txt").write_text("the user's\n")
        write(tree, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Tree, "write_carefully", saved_before)
    with pytest.raises(kv.WorkspaceConflict, match="at this moment"):
        await view.apply()
    assert (project / "a.txt").read_text() == "the user's\n"


async def test_what_is_left_out_is_not_lost_with_its_folder(begin: BeginView, tmp_path: Path) -> None:
    (tmp_path / "project" / "sub" / ".git").mkdir()
    view = begin()
    (view.path / "sub" / "b.txt").unlink()
    (view.path / "sub").rmdir()
    (view.path / "made").mkdir()
    (view.path / "made" / "c.txt").touch()
    assert await view.apply() == ["made/c.txt", "sub/b.txt"]
    assert (tmp_path / "project" / "sub" / ".git").exists()
    (view.path / "sub").write_text("a file")
    with pytest.raises(kv.WorkspaceConflict, match="sub"):
        await view.apply()
    assert (tmp_path / "project" / "sub" / ".git").exists()


def test_a_rollback_writes_through_no_link_and_into_no_other_name(begin: BeginView, tmp_path: Path) -> None:
    view, secret = begin(), tmp_path / "secret"
    secret.write_text("secret")
    version = view.mark(0)
    (view.path / "a.txt").unlink()
    os.link(secret, view.path / "a.txt")
    (view.path / "sub" / "b.txt").unlink()
    (view.path / "sub").rmdir()
    (view.path / "sub").symlink_to(tmp_path)
    os.mkfifo(view.path / "pipe")
    view.go_back(version, 0)
    assert secret.read_text() == "secret"
    assert copy_of(view.path) == copy_of(tmp_path / "project")
    assert not (view.path / "pipe").exists()
    assert sorted(os.listdir(tmp_path)) == ["project", "secret"]


def test_no_version_holds_what_a_folder_leads_to_that_becomes_a_link(begin: BeginView, tmp_path: Path) -> None:
    view, secrets, over = begin(), tmp_path / "secrets", threading.Event()
    secrets.mkdir()
    (secrets / "b.txt").write_text("secret")
    (view.path / "link").symlink_to(secrets)

    def swap() -> None:
        while not over.is_set():
            for name in ("sub", "link"):
                with suppress(OSError):
                    os.rename(view.path / name, view.path / "race")
                    os.rename(view.path / "race", view.path / name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            with suppress(kv.WorkspaceError):
                view.mark(0)
    finally:
        over.set()
        thread.join()
    digests = [view.session.blobs.path(digest).read_bytes() for digest in view.session.blobs.digests()]
    assert b"secret" not in digests
    assert b"two\n" in digests


@pytest.mark.parametrize("exclude", [["*.log", "sub/b.txt", ".git"]])
async def test_what_is_left_out_is_nowhere(begin: BeginView, tmp_path: Path, exclude: list[str]) -> None:
    for name in (".git", "x.log", "keep"):
        (tmp_path / "project" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name / "in").touch()
    view = begin(exclude=exclude)
    assert set(copy_of(view.path)) == {"a.txt", "sub", "keep", "keep/in"}
    (view.path / "y.log").touch()
    assert not await view.diff()
    view.go_back(view.mark(0), 0)
    assert (view.path / "y.log").exists()


def test_a_folder_of_too_many_bytes_is_refused_before_any_is_read(begin: BeginView, tmp_path: Path) -> None:
    with (tmp_path / "project" / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(kv.WorkspaceError, match="more than 1,073,741,824 bytes, the last one seen is 'huge'"):
        begin()
    os.remove(tmp_path / "project" / "huge")
    view = begin()
    with (view.path / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(kv.WorkspaceError, match="exclude what a branch does not need"):
        view.mark(0)
    with pytest.raises(kv.WorkspaceError, match="more than 5 bytes"):
        begin(max_bytes=5)


def test_folders_too_deep_are_refused_and_removed(begin: BeginView) -> None:
    view = begin()
    at = os.open(view.path, os.O_RDONLY)
    for _ in range(DEEPEST * 10):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with pytest.raises(kv.WorkspaceError, match="within each other"):
        view.mark(0)


def test_folders_that_may_not_be_written_to_are_restored(begin: BeginView) -> None:
    view = begin()
    (view.path / "sub").chmod(0o555)
    version = view.mark(0)
    (view.path / "sub").chmod(0o755)
    (view.path / "sub" / "b.txt").write_text("mine\n")
    (view.path / "sub" / "new.txt").touch()
    view.go_back(version, 0)
    assert copy_of(view.path)["sub"] == ("folder", 0o555, b"")
    assert (view.path / "sub" / "b.txt").read_text() == "two\n"
    assert not (view.path / "sub" / "new.txt").exists()


def test_times_are_kept(begin: BeginView, tmp_path: Path) -> None:
    os.utime(tmp_path / "project" / "a.txt", ns=(10**18, 10**18))
    view = begin()
    assert (view.path / "a.txt").stat().st_mtime_ns == 10**18
    version = view.mark(0)
    (view.path / "a.txt").write_text("mine\n")
    view.go_back(version, 0)
    assert (view.path / "a.txt").stat().st_mtime_ns == 10**18


def test_a_rollback_that_fails_is_made_at_the_next_use(begin: BeginView, monkeypatch: pytest.MonkeyPatch) -> None:
    view = begin()
    version = view.mark(0)
    (view.path / "a.txt").write_text("mine\n")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "write_to", full)
        with pytest.raises(kv.WorkspaceError, match=r"'a\.txt': No space left"):
            view.go_back(version, 0)
        with pytest.raises(kv.WorkspaceError):
            _ = view.path
    assert (view.path / "a.txt").read_text() == "one\n"


def test_a_copy_that_fails_leaves_nothing_half_made(begin: BeginView, monkeypatch: pytest.MonkeyPatch) -> None:
    (fork,) = begin().forks(1, 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "write_to", full)
        with pytest.raises(kv.WorkspaceError, match="No space left"):
            _ = fork.path
    assert (fork.path / "a.txt").read_text() == "one\n"
    fork.close()


def test_contents_longer_than_a_chunk(begin: BeginView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_module, "CHUNK", 4)
    (tmp_path / "project" / "long").write_bytes(b"0123456789")
    view = begin()
    assert (view.path / "long").read_bytes() == b"0123456789"
    assert sorted(path.name for path in view.session.blobs.folder.iterdir() if path.is_file()) == [".now"]


def test_a_content_that_cannot_be_stored_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path / "blobs")
    (store.folder / f"new-{os.getpid()}-0").write_text("of a process that was killed, and had this number")
    (store.folder / "new-999999999-0123456789abcdef").write_text("of another")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with (tmp_path / "file").open("w+b", buffering=0) as file, monkeypatch.context() as patch:
        file.write(b"content")
        patch.setattr(blobs_module, "write_all", full)
        with pytest.raises(OSError, match="No space left"):
            store.put(file.fileno())
    store.remove_left()
    assert not list(store.folder.iterdir())


@pytest.mark.parametrize("shares", [True, False])
def test_contents_are_shared_or_copied_where_they_cannot_be(
    begin: BeginView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    view, other = begin(), BlobStore(tmp_path / "other")

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if not shares:
        monkeypatch.setattr(os, "link", refuse)
    for digest in list(view.session.blobs.digests()):
        view.session.blobs.share(digest, other)
        view.session.blobs.share(digest, other)
        other.sync(digest)
        assert other.path(digest).read_bytes() == view.session.blobs.path(digest).read_bytes()
    assert len(list(other.digests())) == 2


def test_workspaces_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, why in (("nowhere", "does not exist; make it"), ("file", "is a file; give its folder")):
        with pytest.raises(kv.InvalidInput, match=why):
            kv.Workspace(tmp_path / name)
    with pytest.raises(kv.InvalidInput, match="list of patterns"):
        kv.Workspace(tmp_path, exclude=".git")
    with pytest.raises(kv.InvalidInput, match="max_bytes"):
        kv.Workspace(tmp_path, max_bytes=0)
    assert kv.Workspace(tmp_path) != kv.Workspace(tmp_path, exclude=())
    assert len({kv.Workspace(tmp_path), kv.Workspace(tmp_path)}) == 1


def remove(folder: Path, elsewhere: Path) -> None:
    shutil.rmtree(folder)


def link(folder: Path, elsewhere: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(elsewhere)


def link_above(folder: Path, elsewhere: Path) -> None:
    folder.parent.rename(f"{folder.parent}.moved")
    folder.parent.symlink_to(elsewhere.parent)


def replace(folder: Path, elsewhere: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


def close_up(folder: Path, elsewhere: Path) -> None:
    folder.chmod(0)


def close_above(folder: Path, elsewhere: Path) -> None:
    folder.parent.chmod(0)


@pytest.mark.parametrize("harm", [remove, link, link_above, replace, close_up, close_above])
def test_a_folder_that_a_command_takes_away_comes_back(
    begin: BeginView, tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    view, project = begin(), tmp_path / "project"
    version, before = view.mark(0), copy_of(project)
    (project / "users").write_text("the user's")  # a view that led here would remove it
    harm(view.path, project)
    (view.path / "new").write_text("in the view")
    view.mark(0)
    view.go_back(version, 0)
    assert copy_of(view.path) == before
    assert sorted(os.listdir(project)) == ["a.txt", "sub", "users"]
    view.close()


def test_what_is_written_while_branches_are_adopted_stays(begin: BeginView) -> None:
    view = begin()
    (fork,) = view.forks(1, 0)
    for name in ("a.txt", "theirs", "gone/deep"):
        (fork.path / name).parent.mkdir(exist_ok=True)
        (fork.path / name).write_text("the fork's")
    assert view.path
    merge = view.merged_with(fork)
    (view.path / "late").write_text("late")
    (view.path / "a.txt").write_text("late")
    (view.path / "sub" / "b.txt").unlink()
    view.take(merge, 0)
    wanted = {"a.txt": "late", "late": "late", "theirs": "the fork's", "gone/deep": "the fork's"}
    assert {path: (view.path / path).read_text() for path in wanted} == wanted
    assert not (view.path / "sub" / "b.txt").exists()
    merge = view.merged_with(fork)  # the late ones count as changes of the branch's own
    assert not merge.changes
    fork.close()


def test_many_versions_are_added_up_in_place() -> None:
    """Not in a copy for each."""
    version = Version({str(n): FileEntry("file", 0o644, "0") for n in range(1000)})
    for number in range(20_000):
        version = Version({str(number % 1000): FileEntry("file", 0o644, f"{number}")}, version)
    assert version.manifest()["999"].data == "19999"
