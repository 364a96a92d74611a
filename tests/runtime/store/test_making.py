"""Exporting once: equal files and options are one export, whoever asks, and nothing is ever there by half."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agentkv_runtime.errors import ExportError, StoreError
from agentkv_runtime.export.asked import Options
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.folder.staging import staged
from agentkv_runtime.hf.load import load_model
from agentkv_runtime.store.content import content_digest
from agentkv_runtime.store.entries import Entry, entries, find, models_folder, remove
from agentkv_runtime.store.home import home, locked
from agentkv_runtime.store.making import export_once, find_export, options_for

from tests.conftest import FolderFactory
from tests.rows import one_in
from tests.runtime.sources.test_lora import adapter
from tests.waiting import PATIENCE

OPTIONS = options_for(quant="q8")  # which is written in a moment
TRACED = options_for(quant="none")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def quiet(_: str) -> None:
    pass


def make(source: Path, name: str, tell: Callable[[str], None] = quiet, options: Options = OPTIONS) -> Entry:
    return export_once(source, name, options, progress=tell, note=quiet)


def child(source: Path) -> subprocess.Popen[str]:
    """The process that opening a model starts."""
    request = json.dumps({"source": str(source), "options": TRACED.model_dump()})
    command = [sys.executable, "-m", "agentkv_runtime.store.process", request]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(process: subprocess.Popen[str], kind: str, words: str) -> None:
    """Reads what a process says up to a line."""
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if words in said.get(kind, ""):
            return
    assert process.stderr is not None
    raise AssertionError(f"it ended and never said {words!r}: {process.stderr.read()}")


def left_behind() -> list[str]:
    return sorted(path.name for path in models_folder().iterdir()) if models_folder().exists() else []


def test_one_export_for_all_who_ask(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = tiny_hf_folder("llama", layers=1)
    waiting: list[subprocess.Popen[str]] = []

    def tell(what: str) -> None:
        if what == "loading torch":  # somebody else asks, in the middle of it
            waiting.append(child(source))
            until(waiting[0], "note", "waiting for it")
            assert entries() == []

    entry = make(source, "owner/tiny", tell, TRACED)
    said, _ = waiting[0].communicate(timeout=PATIENCE)
    assert [json.loads(line) for line in said.splitlines()] == [{"path": str(entry.path)}]
    assert read_model_folder(entry.path).manifest.source == "tiny"
    assert left_behind() == [entry.key]

    # Another name and another place of the same files are the same export.
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    steps: list[str] = []
    again = make(copy, "owner/other", steps.append, TRACED)
    assert (again.key, steps) == (entry.key, ["looking at the files"])
    assert {"owner/tiny", "owner/other", str(source.resolve())} == set(again.names)
    assert (found := find("owner/tiny")) is not None
    assert found.path == entry.path
    assert find("owner/tiny", backend="cpu", quant=entry.options.quant) == found
    with pytest.raises(StoreError, match="agentkv pull owner/tiny --quant 8da4w"):
        find("owner/tiny", quant="8da4w")
    with pytest.raises(StoreError, match="agentkv pull owner/tiny --backend mlx"):
        find("owner/tiny", backend="mlx")

    # It goes with its last name.
    remove("owner/other")
    remove("owner/tiny")
    assert [set(entry.names) for entry in entries()] == [{str(source.resolve())}]
    remove(str(source.resolve()))
    assert left_behind() == []


def test_an_export_that_begins_may_sweep_what_is_being_removed(
    tiny_hf_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, rename = make(tiny_hf_folder("llama", layers=1), "tiny"), Path.rename

    def renamed(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        with staged(entry.place):  # of another model
            return moved

    monkeypatch.setattr(Path, "rename", renamed)
    remove("tiny")
    assert left_behind() == []


def test_other_files_and_other_options_are_other_exports(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    from agentkv_runtime.store.making import _key

    source = tmp_path / "model"
    shutil.copytree(tiny_hf_folder("llama", layers=1), source)
    first = _key(source, OPTIONS, None)
    assert _key(source, OPTIONS, None) == first
    assert _key(source, options_for(quant="8da4w"), None) != first
    assert _key(source, options_for(quant="none", max_context=128), None) != first
    assert _key(source, OPTIONS, source) != first  # as an adapter
    (source / "README.md").write_text("years of work")
    assert _key(source, OPTIONS, None) == first
    weights = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert _key(source, OPTIONS, None) != first


def test_an_entry_says_which_adapter_was_merged_into_it(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = tiny_hf_folder("llama", layers=1)
    merged = adapter(tmp_path / "lora", load_model(source), r=2)
    entry = export_once(source, "tiny+lora", OPTIONS, adapter=merged, progress=quiet, note=quiet)
    assert entry.adapter == content_digest(merged) != ""
    assert [each.adapter for each in entries()] == [entry.adapter]
    assert make(source, "tiny").adapter == ""


@pytest.mark.parametrize(
    ("step", "told"),
    one_in(
        2,
        [
            ("looking at the files", signal.SIGINT),
            ("loading torch", signal.SIGHUP),
            ("tracing the model", signal.SIGINT),
            ("loading the model", signal.SIGTERM),
        ],
    ),
)
def test_told_to_stop_it_leaves_nothing(tiny_hf_folder: FolderFactory, step: str, told: signal.Signals) -> None:
    process = child(tiny_hf_folder("llama", layers=1))
    until(process, "progress", step)
    process.send_signal(told)
    _, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, complained
    assert left_behind() == []


def test_a_killed_export_is_in_nobodys_way(tiny_hf_folder: FolderFactory) -> None:
    source = tiny_hf_folder("llama", layers=1)
    process = child(source)
    until(process, "progress", "loading torch")
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert len(left_behind()) == 1  # what it had begun, under a name that nothing opens
    assert entries() == []
    entry = make(source, "tiny")
    assert left_behind() == [entry.key]


def test_files_that_change_meanwhile_make_no_export(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = tmp_path / "model"
    shutil.copytree(tiny_hf_folder("llama", layers=1), source)

    def tell(what: str) -> None:
        if what == "running it once":
            (source / "generation_config.json").write_text("{}")

    with pytest.raises(ExportError, match="changed while it was exported"):
        make(source, "tiny", tell)
    assert left_behind() == []


def test_where_models_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTKV_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert home() == tmp_path / "caches" / "agentkv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".cache" / "agentkv"
    assert entries() == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "file"))
    with pytest.raises(StoreError, match="set AGENTKV_HOME to a folder"), locked("key", lambda: None):
        pass


def test_an_entry_that_cannot_be_read_is_none(own_home: Path) -> None:
    for name, text in (("a", "{}"), ("b", "not JSON"), ("c", "[" * 10_000)):
        (own_home / "models" / name).mkdir(parents=True)
        (own_home / "models" / name / "entry.json").write_text(text)
    os.mkfifo(own_home / "models" / "pipe")
    assert entries() == []


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKV_HOME", "~nobody-of-this-name/models")
    with pytest.raises(StoreError, match="set AGENTKV_HOME to a folder"):
        entries()


def _nothing_left(entry: Entry) -> None:
    shutil.rmtree(entry.place)
    entry.place.write_text("no folder at all")


@pytest.mark.parametrize(
    "damage",
    one_in(
        2,
        [
            lambda entry: (entry.place / "entry.json").unlink(),
            lambda entry: (entry.path / "tokenizer.json").unlink(),
            lambda entry: os.truncate(entry.path / "model.pte", 100),
            _nothing_left,
        ],
    ),
)
def test_a_damaged_export_is_made_anew(tiny_hf_folder: FolderFactory, damage: Callable[[Entry], None]) -> None:
    source = tiny_hf_folder("llama", layers=1)
    entry = make(source, "tiny")
    damage(entry)
    assert find_export(source, OPTIONS) is None
    again = make(source, "tiny")
    assert (again.key, again.whole) == (entry.key, True)
    assert find_export(source, OPTIONS) == again
    assert left_behind() == [entry.key]


def test_a_large_file_of_the_same_size_and_time_is_another_one(tmp_path: Path) -> None:
    from agentkv_runtime.store.content import file_digest

    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(2 << 20))
    before, first = path.stat(), file_digest(path)
    path.write_bytes(b"\1" * (2 << 20))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(path) != first


def test_a_file_in_parts_is_all_of_them(tmp_path: Path) -> None:
    from agentkv_runtime.store.content import content_digest

    parts = [tmp_path / f"model-{i + 1:05}-of-00002.gguf" for i in range(2)]
    for part in parts:
        part.write_bytes(part.name.encode())
    first = content_digest(parts[0])
    assert content_digest(parts[1]) == first
    parts[1].write_bytes(b"another")
    assert content_digest(parts[0]) == content_digest(parts[1]) != first
