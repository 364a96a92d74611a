"""No path leads out of a folder, whatever its files are, and whatever becomes of them meanwhile."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import agentkv as kv
from agentkv.workspaces import files
from agentkv.workspaces.files import MOST_FOUND, MOST_LISTED, MOST_READ

SECRET = "the secret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder beside a secret, with links to it."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "inner.txt").write_text(SECRET)
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "plain.txt").write_text("plain\n")
    (folder / "sub" / "deep.txt").write_text("deep\n")
    for name, target in {
        "out": "../secret.txt",
        "absolute": str(tmp_path / "secret.txt"),
        "folder_out": "../secrets",
        "folder_absolute": str(tmp_path / "secrets"),
        "up": "..",
        "chain": "out",
        "loop": "loop",
        "sub/out": "../../secret.txt",
        "inside": "sub/deep.txt",
        "sub/back": "../plain.txt",
        "folder_inside": "sub",
        "proc": "/proc/self/root",
        "dangling": "new.txt",
    }.items():
        (folder / name).symlink_to(target)
    return folder


ESCAPES = (
    "../secret.txt",
    "sub/../../secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "out",
    "./out",
    "absolute",
    "folder_out/inner.txt",
    "folder_absolute/inner.txt",
    "up/secret.txt",
    "up/project/plain.txt",
    "chain",
    "sub/out",
    "folder_inside/../../secret.txt",
    "folder_inside/out",
    "proc/etc/passwd",
    "..",
    "../project/plain.txt",
)
OPERATIONS: dict[str, Callable[[Path, str], object]] = {
    "read": files.read_text,
    "write": lambda folder, path: files.write_text(folder, path, "mine"),
    "edit": lambda folder, path: files.edit_text(folder, path, SECRET, "mine"),
    "list": files.list_folder,
    "search": lambda folder, path: files.search_text(folder, "secret", path),
}


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_path_leads_out(folder: Path, operation: str, path: str) -> None:
    with pytest.raises(kv.OutsideWorkspace, match="leads out"):
        OPERATIONS[operation](folder, path)
    assert (folder.parent / "secret.txt").read_text() == SECRET
    assert sorted(os.listdir(folder.parent)) == ["project", "secret.txt", "secrets"]


ODD = {
    "loop": "more than 40 links",
    "plain.txt/x": "through a file",
    "nowhere/x": "no such file",
    "nowhere": "no such file",
    "sub": "a folder",
    "pipe": "a pipe",
    "socket": "a socket",
    "a\0b": "zero byte",
    "\ud800": "half a character",
    "hard": "other names",
    "n" * 300: "too long",
    "binary": "no text",
    "huge": "bytes, and",
}


@pytest.mark.parametrize("path", ODD)
def test_what_is_no_text_file_is_refused_in_words(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    server = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(folder)  # the path of a socket is short
    server.bind("socket")
    (folder / "binary").write_bytes(b"a\0b")
    with (folder / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    os.link(folder / "plain.txt", folder / "hard")
    with server, pytest.raises(kv.WorkspaceError, match=ODD[path]):
        files.read_text(folder, path)


@pytest.mark.parametrize("path", ["pipe", "sub", "device"])
def test_nothing_but_a_plain_file_is_written_over(folder: Path, path: str) -> None:
    os.mkfifo(folder / "pipe")
    with suppress(PermissionError):
        os.mknod(folder / "device", 0o20600, os.makedev(1, 3))
    if not (folder / path).exists():
        pytest.skip("this user makes no devices")
    with pytest.raises(kv.WorkspaceError, match=r"is a (pipe|folder|device)"):
        files.write_text(folder, path, "mine")
    with pytest.raises(kv.WorkspaceError):
        files.edit_text(folder, path, "a", "b")


def test_links_that_stay_inside_are_followed(folder: Path) -> None:
    assert files.read_text(folder, "inside") == "deep\n"
    assert files.read_text(folder, f"{folder}/inside") == "deep\n"
    assert files.read_text(folder, "folder_inside/back") == "plain\n"
    assert files.write_text(folder, "dangling", "made") is True
    assert (folder / "new.txt").read_text() == "made"
    assert files.write_text(folder, "folder_inside/../x/y/z.txt", "deep") is True
    assert (folder / "x" / "y" / "z.txt").read_text() == "deep"


def test_a_file_with_a_name_outside_is_not_read_and_not_written_to(folder: Path) -> None:
    os.link(folder.parent / "secret.txt", folder / "hard")
    with pytest.raises(kv.WorkspaceError, match="may be outside of the workspace"):
        files.read_text(folder, "hard")
    with pytest.raises(kv.WorkspaceError, match="outside"):
        files.edit_text(folder, "hard", SECRET, "mine")
    assert files.search_text(folder, "secret", ".") == []
    files.write_text(folder, "hard", "mine")
    assert (folder.parent / "secret.txt").read_text() == SECRET


def test_a_file_whose_other_names_wander_is_not_read(folder: Path) -> None:
    """Looking for all of its names would find one twice."""
    (folder / "first").mkdir()
    (folder / "last").mkdir()
    os.link(folder.parent / "secret.txt", folder / "first" / "hard")
    over = threading.Event()

    def wander() -> None:
        while not over.is_set():
            for here, there in (("first", "last"), ("last", "first")):
                os.rename(folder / here / "hard", folder / there / "hard")

    thread = threading.Thread(target=wander)
    thread.start()
    try:
        for _ in range(1000):
            for name in ("first", "last"):
                with pytest.raises(kv.WorkspaceError):
                    files.read_text(folder, f"{name}/hard")
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("path", ["new/../../x", "new/" + "n" * 300, "new/deep/../../../x", "new/plain.txt/../../../x"])
def test_a_path_that_comes_to_nothing_leaves_no_folders(folder: Path, path: str) -> None:
    before = sorted(os.listdir(folder))
    with pytest.raises(kv.WorkspaceError):
        files.write_text(folder, path, "mine")
    assert sorted(os.listdir(folder)) == before


def test_names_that_end_lines_are_escaped(folder: Path) -> None:
    (folder / "a\nb").write_text("found")
    assert "a\\nb" in files.list_folder(folder, ".")
    assert files.search_text(folder, "found", ".") == ["a\\nb:1: found"]


@pytest.fixture
def swapped(folder: Path) -> Iterator[Path]:
    """A folder in which "race" is a folder, and a link out of it, in turn, as fast as can be."""
    (folder / "real").mkdir()
    (folder / "real" / "inner.txt").write_text("mine")
    (folder / "link").symlink_to(folder.parent / "secrets")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for name in ("real", "link"):
                os.rename(folder / name, folder / "race")
                os.rename(folder / "race", folder / name)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield folder
    finally:
        over.set()
        thread.join()


def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(swapped: Path) -> None:
    for _ in range(3000):
        with suppress(kv.WorkspaceError):
            assert files.read_text(swapped, "race/inner.txt") == "mine"
        with suppress(kv.WorkspaceError):
            files.edit_text(swapped, "race/inner.txt", "mine", "mine")
        with suppress(kv.WorkspaceError):
            assert not any(SECRET in line for line in files.search_text(swapped, ".", "race"))
    assert (swapped.parent / "secrets" / "inner.txt").read_text() == SECRET
    assert os.listdir(swapped.parent / "secrets") == ["inner.txt"]


def test_answers_are_bounded(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(MOST_LISTED + 5):
        (folder / "many" / f"{number}").touch()
    assert files.list_folder(folder, "many")[-1] == "... and 5 more"
    (folder / "long").write_text("x\n" * 1000)
    assert len(files.search_text(folder, "x", "long")) == MOST_FOUND + 1
    (folder / "line").write_text("y" * (MOST_READ // 2))
    assert len(files.search_text(folder, "y", "line")[0]) < 400


def test_a_pattern_that_takes_for_ever_is_ended(folder: Path) -> None:
    (folder / "slow").write_text("a" * 40 + "!")
    with pytest.raises(kv.WorkspaceError, match="takes too long"):
        files.search_text(folder, r"(a|a)*$", "slow")


def test_a_search_has_its_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SEARCH_S", 0.0)
    with pytest.raises(kv.WorkspaceError, match="search in fewer files"):
        files.search_text(folder, "x", ".")


@pytest.mark.parametrize("pattern", ["(", "(?u)(?a)x", "(?R)", "(?<!(?R))", "(a(?1))", "(?P<n>a(?&n))", "a" * 10_000])
def test_patterns_that_are_not_searched_for(folder: Path, pattern: str) -> None:
    with pytest.raises(kv.WorkspaceError, match=r"no regular expression|calls itself, or is long"):
        files.search_text(folder, pattern, ".")


def test_an_edit_says_why_it_cannot_be_made(folder: Path) -> None:
    (folder / "twice").write_text("one\ntwo\ntwo\n")
    with pytest.raises(kv.WorkspaceError, match="nowhere"):
        files.edit_text(folder, "twice", "three", "x")
    with pytest.raises(kv.WorkspaceError, match="2 times"):
        files.edit_text(folder, "twice", "two", "x")
    with pytest.raises(kv.WorkspaceError, match="old text is empty"):
        files.edit_text(folder, "twice", "", "x")
    assert files.edit_text(folder, "twice", "two\ntwo", "x") == 2
    assert (folder / "twice").read_text() == "one\nx\n"
