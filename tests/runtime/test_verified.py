"""Files that were read before are read again when anything touched them, and only then."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.folder import verified
from agentkv_runtime.folder.model_folder import file_fingerprint, read_model_folder
from agentkv_runtime.folder.verified import remember_fingerprint, remembered_fingerprint
from agentkv_runtime.programs import load_folder

import agentkv as kv
from tests.waiting import TICK


class Reader:
    """Counts what it reads."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self, path: Path) -> str:
        self.reads += 1
        return file_fingerprint(path)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once."""
    monkeypatch.setattr(verified, "_SETTLED_NS", -(10**12))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"some bytes")
    return path


@pytest.mark.usefixtures("settled")
def test_a_file_that_nobody_touched_is_read_once(file: Path) -> None:
    read = Reader()
    assert {remembered_fingerprint(file, read) for _ in range(3)} == {file_fingerprint(file)}
    assert read.reads == 1


@pytest.mark.usefixtures("settled")
def test_a_file_that_was_touched_is_read_again(file: Path) -> None:
    read = Reader()
    first = remembered_fingerprint(file, read)
    times = os.stat(file)
    time.sleep(TICK)
    file.write_bytes(b"same bytes"[:10])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if it had not been
    assert remembered_fingerprint(file, read) == file_fingerprint(file) != first
    assert read.reads == 2
    file.rename(file.with_name("moved"))
    file.write_bytes(b"another file")
    assert remembered_fingerprint(file, read) == file_fingerprint(file)


def test_a_file_that_changed_just_now_is_read_again(file: Path) -> None:
    read = Reader()
    for _ in range(2):
        remembered_fingerprint(file, read)
    assert read.reads == 2


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b'{"state": 1, "fingerprint": 2}', b"\xff", b'{"state": [1]}', b"[" * 4096]
)
def test_notes_that_are_damaged_are_written_anew(note: bytes, file: Path) -> None:
    read = Reader()
    remembered_fingerprint(file, read)
    (path,) = (each for each in _notes() if str(os.stat(file).st_ino) in each.read_text())
    path.write_bytes(note)
    assert remembered_fingerprint(file, read) == file_fingerprint(file)
    remembered_fingerprint(file, read)
    assert read.reads == 2


@pytest.mark.usefixtures("settled")
def test_a_home_that_cannot_be_written_costs_a_read(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("a file where the folder would be")
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "home"))
    read = Reader()
    for _ in range(2):
        assert remembered_fingerprint(file, read) == file_fingerprint(file)
    assert read.reads == 2


@pytest.mark.usefixtures("settled")
def test_a_program_that_was_damaged_since_is_refused(tmp_path: Path) -> None:
    source = kv.models.nano()
    copy = tmp_path / "model"
    copy.mkdir()
    for each in Path(source).iterdir():
        if each.is_file():
            (copy / each.name).write_bytes(each.read_bytes())
    folder = read_model_folder(copy)
    load_folder(folder)
    time.sleep(TICK)
    with folder.model_path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        byte = file.read(1)
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(ModelFolderError, match="damaged or replaced: its fingerprint is"):
        load_folder(read_model_folder(copy))


def _notes() -> list[Path]:
    return sorted((Path(os.environ["AGENTKV_HOME"]) / "verified").iterdir())


def test_what_was_written_here_is_not_read_until_somebody_touches_it(file: Path) -> None:
    remember_fingerprint(file, file_fingerprint(file))
    read = Reader()
    assert remembered_fingerprint(file, read) == file_fingerprint(file)
    assert read.reads == 0
    time.sleep(TICK)
    file.write_bytes(b"any bytes!")
    assert remembered_fingerprint(file, read) == file_fingerprint(file)
    assert read.reads == 1
