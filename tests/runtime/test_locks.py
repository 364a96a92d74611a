"""Who holds a lock keeps others out for as long as its process lives; a system without locks says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agentkv_runtime.folder import fresh_file, locks
from agentkv_runtime.folder.fresh_file import FreshFile, put_in_place
from agentkv_runtime.folder.staging import staged

HOLDER = """
import os, sys
from agentkv_runtime.folder.locks import lock
lock(os.open(sys.argv[1], os.O_RDONLY), wait=False)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_holds_it_at_a_time_and_not_behind_its_end(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    path.mkdir() if kind == "folder" else path.touch()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(BlockingIOError):
                locks.lock(descriptor, wait=False)
            holder.kill()
            locks.lock(descriptor, wait=True)
        locks.lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


@pytest.fixture
def none_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HAS_LOCKS", False)
    monkeypatch.setattr(fresh_file, "HAS_LOCKS", False)


@pytest.mark.usefixtures("none_here")
def test_without_locks_nothing_begins_that_needs_them(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no locks .* use Linux, macOS or WSL"):
        locks.check_locks()
    with pytest.raises(OSError, match="no locks"):
        locks.lock(0, wait=False)
    with pytest.raises(OSError, match="no locks"):
        FreshFile(tmp_path / "file")
    with pytest.raises(OSError, match="no locks"), staged(tmp_path / "below" / "folder"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("none_here")
def test_without_locks_small_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    put_in_place(tmp_path / "file", b"old")
    put_in_place(tmp_path / "file", b"new", 0o600)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        put_in_place(tmp_path / "folder", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
