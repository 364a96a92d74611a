"""A file is the old one or the new one, whatever happens to its writer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agentkv_runtime.folder.fresh_file import FreshFile


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_it_takes_its_place_when_it_is_put_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    fresh = FreshFile(path)
    fresh.write(4, b"efgh")
    fresh.write(0, b"abcd")
    assert path.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2
    fresh.put_in_place()
    fresh.discard()
    assert path.read_bytes() == b"abcdefgh"
    assert names(tmp_path) == ["file"]
    with pytest.raises(OSError, match="given up"):
        fresh.write(0, b"x")


def test_a_discarded_one_leaves_nothing(tmp_path: Path) -> None:
    fresh = FreshFile(tmp_path / "file")
    fresh.write(0, b"abcd")
    fresh.discard()
    fresh.discard()
    assert names(tmp_path) == []
    with pytest.raises(OSError, match="given up"):
        fresh.put_in_place()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_the_permissions_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    FreshFile(path).put_in_place()
    assert path.stat().st_mode & 0o777 == mode


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    fresh = FreshFile(tmp_path / "link")
    fresh.write(0, b"abcd")
    fresh.put_in_place()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"abcd"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(OSError, match="else than a regular file"):
            FreshFile(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        FreshFile(tmp_path / "missing" / "file")
    assert names(tmp_path) == ["folder", "pipe"]


def test_leftovers_of_the_killed_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    script = f"""
import os
from pathlib import Path
from agentkv_runtime.folder.fresh_file import FreshFile
FreshFile(Path({str(path)!r})).write(0, b"half")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    (left,) = names(tmp_path)
    other = FreshFile(tmp_path / "other")
    living = FreshFile(path)
    assert left not in names(tmp_path)
    third = FreshFile(path)
    for fresh, text in ((other, b"other"), (living, b"living"), (third, b"third")):
        fresh.write(0, text)
        fresh.put_in_place()
    assert path.read_bytes() == b"third"
    assert names(tmp_path) == ["file", "other"]


def test_no_room_is_an_oserror(tmp_path: Path) -> None:
    script = f"""
import resource, signal
from pathlib import Path
from agentkv_runtime.folder.fresh_file import FreshFile
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fresh = FreshFile(Path({str(tmp_path / "file")!r}))
try:
    fresh.write(0, b"x" * 5000)
except OSError as error:
    print(error.strerror)
fresh.discard()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "File too large"
    assert names(tmp_path) == []


def test_files_get_the_rights_that_new_files_get(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    fresh = FreshFile(tmp_path / "file")
    fresh.put_in_place()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
