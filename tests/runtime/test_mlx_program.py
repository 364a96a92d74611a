"""MLX programs through ExecuTorch: sessions over one program, failures in the middle of one, and damage."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime._core import ExecuTorchProgram, ForwardFailed, ProgramError
from agentkv_runtime.backends import load_backend
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.programs import open_session

from tests.conftest import FolderFactory
from tests.driver import Driver, Logits

TOKENS = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 264, 338]
BACKEND_ID = load_backend("mlx")

from agentkv_runtime import _mlx  # noqa: E402

pytestmark = pytest.mark.usefixtures("failing_caches")


@pytest.fixture(scope="module")
def folder(tiny_exported_folder: FolderFactory) -> Path:
    return tiny_exported_folder("llama", backend="mlx")


def driver(folder: Path, **options: Any) -> Driver:
    session = open_session(read_model_folder(folder), **{"capacity": 64, "kv_dtype": "fp32", **options})
    return Driver(session, session.cache)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16"])
def test_a_failure_in_the_middle_leaves_the_session_as_it_was(folder: Path, layer: int, kv_dtype: str) -> None:
    want = driver(folder, kv_dtype=kv_dtype, min_chunk=4).feed(0, TOKENS, [5, 1, 1])
    failing = driver(folder, kv_dtype=kv_dtype, min_chunk=4)
    got = [failing.feed(0, TOKENS[:5])]
    for rows in ([5], [6], list(range(7, 12))):
        held = failing.program.kv_bytes
        _core.fail_at(failing.cells, layer)
        with pytest.raises(ForwardFailed, match=f"layer {layer}"):
            failing.step([(0, TOKENS[row]) for row in rows])
        assert failing.cells.seq_len(0) == rows[0]
        assert failing.program.kv_bytes >= held
        got.append(failing.step([(0, TOKENS[row]) for row in rows]))
    assert np.concatenate(got).tobytes() == want.tobytes()


def test_a_failure_touches_no_other_session(folder: Path) -> None:
    want = driver(folder).feed(0, TOKENS, [1] * 11)
    failing, other = driver(folder), driver(folder)
    got = []
    for token in TOKENS:
        _core.fail_at(failing.cells, 1)
        with pytest.raises(ForwardFailed):
            failing.step([(0, 7)])
        got.append(other.step([(0, token)]))
    assert np.concatenate(got).tobytes() == want.tobytes()


def test_a_token_outside_the_embedding_is_refused(folder: Path) -> None:
    d = driver(folder)
    with pytest.raises(_core.InvalidTensor, match="token 384 is outside"):
        d.feed(0, [384])
    assert d.feed(0, TOKENS).shape == (12, 384)


def test_sessions_of_many_threads_do_not_meet(folder: Path, tiny_exported_folder: FolderFactory) -> None:
    folders = [folder, tiny_exported_folder("qwen3", backend="mlx"), tiny_exported_folder("gemma3", backend="mlx")]
    want = {path: driver(path).feed(0, TOKENS, [4, 1]) for path in folders}
    failures: list[str] = []

    def work(index: int) -> None:
        for turn in range(3):
            path = folders[(index + turn) % len(folders)]
            if driver(path).feed(0, TOKENS, [4, 1]).tobytes() != want[path].tobytes():
                failures.append(f"thread {index}, turn {turn}: {path.name}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def patched(source: Path, path: Path, change: Callable[[bytearray], Any]) -> str:
    data = bytearray((source / "model.pte").read_bytes())
    change(data)
    path.write_bytes(data)
    return str(path)


def test_a_damaged_graph_is_refused(folder: Path, tmp_path: Path) -> None:
    def flip(data: bytearray) -> None:
        data[data.index(b"AKVG") + 100] ^= 1

    with pytest.raises(ProgramError, match=r"cannot be loaded: MLX delegate: damaged blob: its checksum"):
        ExecuTorchProgram(patched(folder, tmp_path / "model.pte", flip), BACKEND_ID)


def test_a_graph_of_another_version_is_refused(folder: Path, tmp_path: Path) -> None:
    def renumber(data: bytearray) -> None:
        data[data.index(b"AKVG") + 4] = 2

    with pytest.raises(ProgramError, match="blob version 2, this build reads version 1"):
        ExecuTorchProgram(patched(folder, tmp_path / "model.pte", renumber), BACKEND_ID)


def test_weights_that_are_not_there_are_named(folder: Path, tmp_path: Path) -> None:
    name = b"layers.0.mlp.up_proj.weight"

    def rename(data: bytearray) -> None:
        graph = data.index(b"AKVG")
        size = int.from_bytes(data[graph + 8 : graph + 12], "little")
        end = graph + 16 + size
        kept = bytes(data[graph:end])
        data[:] = data.replace(name, name.upper())
        data[graph:end] = kept

    with pytest.raises(
        ProgramError, match=r"MLX delegate: the program has no constant .*layers\.0\.mlp\.up_proj\.weight"
    ):
        ExecuTorchProgram(patched(folder, tmp_path / "model.pte", rename), BACKEND_ID)


def test_a_process_that_holds_sessions_exits_cleanly(folder: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.runtime.test_mlx_program import TOKENS, driver\n"
        "held = [driver(Path(sys.argv[1])) for _ in range(3)]\n"
        "for d in held: d.feed(0, TOKENS)\n"
        "sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")


def test_a_forked_child_is_told_and_exits_cleanly(folder: Path) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.runtime.test_mlx_program import TOKENS, driver\n"
        "held = driver(Path(sys.argv[1]))\n"
        "held.feed(0, TOKENS)\n"
        "child = os.fork()\n"
        "status = os.waitpid(child, 0)[1] if child else 0\n"
        "try:\n"
        "    held.feed(0, [5])\n"
        "    print('parent ran')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "sys.exit(status)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said_by_child, said_by_parent = done.stdout.splitlines()
    assert "was forked from it and cannot use it" in said_by_child
    assert said_by_parent == "parent ran"


def test_weights_are_in_memory_once_and_leave_with_the_program(tiny_exported_folder: FolderFactory) -> None:
    path = tiny_exported_folder("llama", backend="mlx", hidden=512, intermediate=2048, heads=8, head_dim=64)
    weights = (path / "model.pte").stat().st_size
    assert weights > 20 << 20
    before = _mlx.active_memory()
    sessions = [driver(path) for _ in range(3)]
    for d in sessions:
        d.feed(0, TOKENS)
    assert _mlx.active_memory() - before <= weights + sum(d.program.kv_bytes for d in sessions)
    del d, sessions
    gc.collect()
    assert _mlx.active_memory() == before


def test_logits_are_the_caller_s_own(folder: Path) -> None:
    d = driver(folder)
    first: Logits = d.step([(0, 5)])
    kept = first.copy()
    d.step([(0, 6)])
    assert first.tobytes() == kept.tobytes()
