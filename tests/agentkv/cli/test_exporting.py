"""Opening a Hugging Face folder with a quantisation: exported once, in a process of its own, then opened."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from agentkv_runtime.store.entries import entries, models_folder

import agentkv as kv
from agentkv._console.progress import Display
from agentkv._model.export import _end
from tests.conftest import FolderFactory
from tests.waiting import PATIENCE, until_sync

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "home"))


async def test_a_folder_is_exported_once(
    tiny_hf_folder: FolderFactory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(Display, "done", lambda _, share: shares.append(share))
    source = tiny_hf_folder("llama", layers=1)
    caplog.set_level(logging.DEBUG, "agentkv")
    async with kv.Context.open(source, capacity=64, quant="none") as ctx:
        info = ctx.model_info
        assert (info.backend, info.quantization, info.path.parent.parent) == ("cpu", "none", models_folder())
    assert "tracing the model" in caplog.text
    assert shares == sorted(shares)
    assert (shares[0], shares[-1] > 0.9) == (0.0, True)
    caplog.clear()
    async with kv.Context.open(str(source), capacity=64, backend="cpu", quant="none") as ctx:
        assert ctx.model_info.fingerprint == info.fingerprint
    assert "tracing the model" not in caplog.text
    assert len(entries()) == 1


async def test_cancelled_it_leaves_nothing(tiny_hf_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv._model.export.GRACE_S", PATIENCE)
    source = tiny_hf_folder("llama", layers=1)

    async def open_it() -> None:
        async with kv.Context.open(source, quant="8da8w"):
            raise AssertionError("it was opened")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_it)
        await anyio.to_thread.run_sync(wait_for_an_export)
        tasks.cancel_scope.cancel()
    assert not models_folder().exists()  # it made that folder, too
    assert not [args for args in running() if "agentkv_runtime.store.process" in args and str(source) in args]


async def test_what_an_export_is_refused_for_is_what_opening_says(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(kv.ModelError, match="holds no weights"):
        await opened(tmp_path, quant="8da4w")
    (tmp_path / "model.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(kv.ModelError, match=r"model\.gguf: cannot be read as a GGUF file"):
        await opened(tmp_path / "model.gguf")
    assert entries() == []


async def test_a_user_without_a_home_is_told_so(tiny_hf_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKV_HOME", "~nobody-of-this-name/models")
    with pytest.raises(kv.ModelError, match="set AGENTKV_HOME to a folder"):
        await opened(tiny_hf_folder("llama", layers=1), quant="8da4w")


async def test_an_export_that_cannot_be_started(tiny_hf_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(kv.ModelError, match=r"cannot be exported: .*/no/such/python"):
        await opened(tiny_hf_folder("llama", layers=1), quant="8da4w")


async def test_options_that_contradict_each_other(tmp_path: Path, tiny_exported_folder: FolderFactory) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(kv.InvalidInput, match="quant is str '4 bits'"):
        await opened(tmp_path, quant="4 bits")
    with pytest.raises(kv.InvalidInput, match="backend 'torch' runs weights as they are"):
        await opened(tmp_path, quant="8da4w", backend="torch")
    with pytest.raises(kv.ModelError, match="backend cpu has no quantisation 'affine4'"):
        await opened(tmp_path, quant="affine4")
    with pytest.raises(kv.ModelError, match="was exported with quantisation 'none', not '8da4w'"):
        await opened(tiny_exported_folder("llama"), quant="8da4w")


async def test_without_torch_opening_says_what_to_install(
    tiny_hf_folder: FolderFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(kv.ModelError, match="torch is not installed: pip install torch=="):
        await opened(tiny_hf_folder("llama", layers=1), quant="8da4w")


def wait_for_an_export() -> None:
    """Until one has begun to write."""
    until_sync(lambda: models_folder().is_dir() and list(models_folder().iterdir()))


def running() -> Iterator[str]:
    """The command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_bytes().decode(errors="replace")


async def opened(path: Path, **options: str) -> None:
    async with kv.Context.open(path, **options):  # type: ignore[arg-type]
        raise AssertionError("it was opened")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (-9, "was killed by signal 9, perhaps because memory ran out"),
        (-7, "the file was cut meanwhile"),
        (3, "status 3"),
    ],
)
async def test_how_an_export_ended_is_said(tmp_path: Path, status: int, said: str) -> None:
    with (tmp_path / "errors").open("wb+") as errors:
        assert said in _end(status, errors)
