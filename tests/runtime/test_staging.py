"""Putting an export in place: stopped at any moment, it leaves the old model, the new one, or an error that says so."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.folder import staging as staging_module
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.folder.staging import holds_nothing, install, staged

from tests.runtime.folders import write_folder

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("model.pte", "tokenizer.json", "chat_template.jinja")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def write_old(out: Path) -> None:
    write_folder(out, b"the old program")
    (out / "chat_template.jinja").write_text("old")
    (out / "notes.txt").write_text("years of work")
    (out / "draft.pte").write_text("a draft head")


def export_new(out: Path) -> None:
    with staged(out) as staging:
        write_folder(staging, b"the new program, and longer")
        install(staging, out, NAMES, "agentkv.json")


def run_child(action: Callable[[], object]) -> int:
    """The status of a child process that does `action`; nothing else of it reaches this one."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def at_change(n: int, action: Callable[[], object]) -> None:
    """Has this process do `action` when it is about to change the file system for the n-th time. For good."""
    left = n

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event == "open":
            flags = arguments[2]
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) != 0
        else:
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod")
        left -= changes
        if changes and left == 0:
            action()

    sys.addaudithook(hook)


def export_killed(out: Path, n: int) -> None:
    at_change(n, lambda: os.kill(os.getpid(), signal.SIGKILL))
    export_new(out)


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def export_failing(out: Path, n: int) -> None:
    at_change(n, disk_full)
    export_new(out)


def stop_everywhere(root: Path) -> None:
    """Kills or fails an export over a model at each change that it makes. For a process without threads."""
    write_old(root / "old")
    old = contents(root / "old")
    write_old(root / "new")
    export_new(root / "new")
    new = contents(root / "new")
    assert old.keys() - new.keys() == {"chat_template.jinja"}
    ends = {"refused": 0, "whole": 0}
    for n in range(1, 1000):
        folder = root / f"failing-{n}"
        write_old(folder)
        run_child(partial(export_failing, folder, n))
        assert contents(folder) in (old, new), n

        folder = root / f"killed-{n}"
        write_old(folder)
        if run_child(partial(export_killed, folder, n)) == 0:
            break  # there is no n-th change
        try:
            read_model_folder(folder).verify()
            assert contents(folder) in (old, new)
            ends["whole"] += 1
        except ModelFolderError as error:
            if "Export it again" not in str(error):
                raise
            ends["refused"] += 1
        export_new(folder)
        assert contents(folder) == new
        assert all(path.is_file() for path in folder.iterdir())
    assert min(ends.values()) >= 5, ends
    print(ends)


def export_when_told(out: Path, program: bytes, told: int) -> None:
    with staged(out) as staging:
        write_folder(staging, program)
        (staging / "chat_template.jinja").write_bytes(program)
        os.read(told, 1)
        install(staging, out, NAMES, "agentkv.json")


def export_together(root: Path) -> None:
    """Several exports into one folder at a time, which is there or not. For a process without threads."""
    for i in range(20):
        out = root / f"model-{i}"
        if i % 2:
            write_old(out)
        told, tell = os.pipe()
        children = []
        for program in (b"1" * 100, b"2" * 200, b"3" * 300):
            if (child := os.fork()) == 0:
                os._exit(run_child(partial(export_when_told, out, program, told)) != 0)
            children.append(child)
        os.write(tell, b"now")
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0], i
        read_model_folder(out).verify()
        assert (out / "chat_template.jinja").read_bytes() == (out / "model.pte").read_bytes(), i
        assert all(path.is_file() for path in out.iterdir()), i


def interrupted_at_line(n: int, action: Callable[[], object]) -> bool:
    """Whether `action` has an n-th line in the module of staging; there it is interrupted, as by a signal."""
    left = n

    def lines(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != staging_module.__file__:
            return None
        left -= event == "line"
        if event == "line" and left == 0:
            raise KeyboardInterrupt
        return lines

    sys.settrace(lines)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def in_a_process(action: str, place: Path) -> None:
    """Runs one of the functions above on a folder, in a process without threads."""
    script = f"from pathlib import Path; from {__name__} import {action} as run; run(Path({str(place)!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_an_export_that_is_killed_or_fails_leaves_no_mixture(tmp_path: Path) -> None:
    in_a_process("stop_everywhere", tmp_path)


def test_exports_into_one_folder_at_a_time_leave_one_of_them(tmp_path: Path) -> None:
    in_a_process("export_together", tmp_path)


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    export_new(tmp_path / "a" / "b" / "model")
    assert read_model_folder(tmp_path / "a" / "b" / "model").manifest.model_bytes == 27
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["model"]
    with pytest.raises(RuntimeError), staged(tmp_path / "c" / "d" / "model"):
        raise RuntimeError("the export")
    assert not (tmp_path / "c").exists()


def test_an_export_that_is_interrupted_at_any_line_before_it_begins_leaves_nothing(tmp_path: Path) -> None:
    def begin() -> None:
        with staged(tmp_path / "a" / "model"):
            sys.settrace(None)

    lines = 0
    while interrupted_at_line(lines + 1, begin):
        lines += 1
        assert list(tmp_path.iterdir()) == [], f"line {lines}"
    assert lines > 20


def test_a_folder_that_was_taken_is_not_made_again_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []
    held = staging_module._held

    def held_late(folder: Path, **options: Any) -> Any:
        if not taken:  # a second export, which swept meanwhile; a third has opened the same folder and goes on later
            taken.append(folder)
            folder.rmdir()
        return held(folder, **options)

    monkeypatch.setattr(staging_module, "_held", held_late)
    with staged(tmp_path / "model") as folder:
        (folder / "model.pte").touch()
        shutil.rmtree(taken[0], ignore_errors=True)  # the third
        assert (folder / "model.pte").exists()
    assert list(tmp_path.iterdir()) == []


def test_what_killed_exports_left_goes_and_what_others_write_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with staged(out) as other:
        left = out / (other.name + "-killed")
        left.mkdir()
        (left / "model.pte").write_bytes(b"half")
        assert holds_nothing(out)
        export_new(out)
        assert not left.exists()
        assert other.exists()
    assert not holds_nothing(out)
    assert "agentkv.json" in contents(out)


def test_who_reads_while_an_export_replaces_is_told(tmp_path: Path) -> None:
    write_old(tmp_path)
    folder = read_model_folder(tmp_path)
    folder.check_current()
    export_new(tmp_path)
    with pytest.raises(ModelFolderError, match="exported into it just now"):
        folder.check_current()
    read_model_folder(tmp_path).check_current()
