"""Sessions over one program: they share its weights and nothing else."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.folder.model_folder import ModelFolder, read_model_folder
from agentkv_runtime.programs import get_threads, load_program, open_session, set_threads

from tests.conftest import FolderFactory
from tests.driver import Driver, Logits

pytestmark = pytest.mark.usefixtures("failing_caches")

TOKENS = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 264, 338]


@pytest.fixture(scope="module")
def folder(tiny_exported_folder: FolderFactory) -> ModelFolder:
    return read_model_folder(tiny_exported_folder("llama"))


def driver(folder: ModelFolder, **options: Any) -> Driver:
    session = open_session(folder, **{"capacity": 64, "kv_dtype": "fp32", **options})
    return Driver(session, session.cache)


def equal(a: Logits, b: Logits) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def test_a_second_session_loads_nothing_again(folder: ModelFolder) -> None:
    first, second = open_session(folder, capacity=8), open_session(folder, capacity=8)
    assert first.program is second.program
    assert first.cache is not second.cache
    link = folder.path.parent / "link.pte"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.model_path)
    assert load_program(link) is first.program


def test_weights_are_in_memory_once(tiny_exported_folder: FolderFactory) -> None:
    path = tiny_exported_folder("llama", hidden=512, intermediate=2048, heads=8, head_dim=64, layers=2)
    script = (
        "import sys, resource\n"
        "from agentkv_runtime.folder.model_folder import read_model_folder\n"
        "from agentkv_runtime.programs import open_session\n"
        "def resident():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()\n"
        "folder = read_model_folder(sys.argv[1])\n"
        "first = open_session(folder, capacity=64)\n"
        "before = resident()\n"
        "others = [open_session(folder, capacity=64) for _ in range(8)]\n"
        "print(folder.manifest.model_bytes, resident() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    weights, grown = map(int, done.stdout.split())
    assert weights > 30e6
    assert grown < weights / 10


def test_a_replaced_file_is_another_program(folder: ModelFolder, tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    shutil.copyfile(folder.model_path, path)
    first = load_program(path)
    path.unlink()
    shutil.copyfile(folder.model_path, path)
    assert load_program(path) is not first


def test_programs_go_with_their_last_session(folder: ModelFolder, tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    shutil.copyfile(folder.model_path, path)
    before = _core.cache_keys()
    session = load_program(path).make_session(capacity=8)
    assert len(_core.cache_keys()) == len(before) + 1
    del session
    gc.collect()
    assert _core.cache_keys() == before


def test_threads_that_open_the_same_model_share_it(folder: ModelFolder, tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    shutil.copyfile(folder.model_path, path)
    programs: list[Any] = []
    threads = [threading.Thread(target=lambda: programs.append(load_program(path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(programs) == 4
    assert len({id(program) for program in programs}) == 1


def test_interleaved_sessions_give_the_bits_of_each_alone(folder: ModelFolder) -> None:
    other = TOKENS[::-1]
    alone, other_alone = driver(folder).feed(0, TOKENS), driver(folder).feed(0, other)
    left, right = driver(folder), driver(folder)
    got: list[list[Logits]] = [[], []]
    for a, b in zip(TOKENS, other, strict=True):
        got[0].append(left.step([(0, a)]))
        got[1].append(right.step([(0, b)]))
    assert equal(np.concatenate(got[0]), alone)
    assert equal(np.concatenate(got[1]), other_alone)


def test_sessions_on_several_threads_give_the_bits_of_each_alone(folder: ModelFolder) -> None:
    alone = driver(folder).feed(0, TOKENS)
    found: list[bool] = []

    def work() -> None:
        mine = driver(folder)
        for _ in range(5):
            rows = [mine.step([(0, token)]) for token in TOKENS]
            found.append(equal(np.concatenate(rows), alone))
            mine.cells.clear()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 15


def test_thread_counts_do_not_change_bits(folder: ModelFolder) -> None:
    before = get_threads()
    try:
        rows = []
        for n in (1, 2, 5):
            set_threads(n)
            assert get_threads() == n
            rows.append(driver(folder).feed(0, TOKENS))
    finally:
        set_threads(before)
    assert equal(rows[0], rows[1])
    assert equal(rows[0], rows[2])


@pytest.mark.parametrize("n", [0, 1025])
def test_impossible_thread_counts(n: int) -> None:
    with pytest.raises(_core.Error, match=str(n)):
        set_threads(n)


REOPENED = """
import os, shutil, sys
from pathlib import Path
import numpy as np
from agentkv_runtime import _core
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.programs import get_threads, open_session, set_threads
from tests.driver import Driver

folder = read_model_folder(sys.argv[1])
session = open_session(folder, capacity=64)
driver = Driver(session, session.cache)
before = driver.step([(0, 5)])
data = folder.model_path.read_bytes()
match sys.argv[2]:
    case "cut short":
        os.truncate(folder.model_path, 4096)
    case "written to":
        folder.model_path.write_bytes(data)
    case "renamed over":
        (folder.path / "new").write_bytes(data[:4096])
        os.replace(folder.path / "new", folder.model_path)
set_threads(get_threads() + 1)  # methods are loaded again
try:
    print(np.array_equal(driver.step([(1, 5)]), before))
except _core.ProgramError as error:
    print(error)
    print(session.cache.seq_len(1), session.cache.used)
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cut short", "written to while it was open: {size} bytes then, 4096 now. Leave the Context and open"),
        ("written to", "written to while it was open: {size} bytes then, {size} now. Leave the Context and open"),
        ("renamed over", "True"),
    ],
)
def test_a_program_that_was_written_to_is_not_loaded_again(
    folder: ModelFolder, tmp_path: Path, change: str, said: str
) -> None:
    shutil.copytree(folder.path, tmp_path / "copy")
    done = subprocess.run(
        [sys.executable, "-c", REOPENED, tmp_path / "copy", change], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert said.format(size=folder.manifest.model_bytes) in done.stdout
    if change != "renamed over":
        assert done.stdout.splitlines()[-1] == "0 1"  # the step was aborted


@pytest.mark.parametrize("layer", [0, 1])
def test_a_failure_inside_the_model_leaves_the_cache_as_it_was(folder: ModelFolder, layer: int) -> None:
    undisturbed = driver(folder).feed(0, TOKENS)
    disturbed = driver(folder)
    _core.fail_at(disturbed.cells, layer, after_forwards=1)
    first = disturbed.feed(0, TOKENS[:5])
    used = disturbed.cells.used
    with pytest.raises(_core.ForwardFailed, match=rf"injected failure at layer {layer}"):
        disturbed.step([(0, token) for token in TOKENS[5:]])
    assert disturbed.cells.used == used
    assert disturbed.cells.seq_len(0) == 5
    rest = disturbed.feed(0, TOKENS[5:])
    assert equal(np.concatenate([first, rest]), undisturbed)


def test_a_failure_in_one_session_spares_the_others(folder: ModelFolder) -> None:
    undisturbed = driver(folder).feed(0, TOKENS)
    failing, fine = driver(folder), driver(folder)
    _core.fail_at(failing.cells, 1)
    assert equal(fine.feed(0, TOKENS), undisturbed)
    with pytest.raises(_core.ForwardFailed):
        failing.feed(0, TOKENS)


@pytest.mark.parametrize(
    ("tokens", "positions", "indices", "message"),
    [
        ([384], [0], [0], "token 384 is outside the model's vocabulary of 384"),
        ([-1], [0], [0], "token -1"),
        ([], [], [], "a forward of 0 tokens; the program takes 1 to 64"),
        ([1] * 65, list(range(65)), [0], "a forward of 65 tokens"),
        ([1, 2], [0], [0], "2 tokens but 1 positions"),
        ([1], [0], [1], "logits of row 1 in a forward of 1 tokens"),
        ([1], [0], [0] * 65, "65 rows of logits; the program returns at most 64"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_runs(
    folder: ModelFolder, tokens: list[int], positions: list[int], indices: list[int], message: str
) -> None:
    session = open_session(folder, capacity=64)
    arrays = [np.array(values, dtype=np.int64) for values in (tokens, positions, indices)]
    with pytest.raises(_core.InvalidTensor, match=message):
        session.forward(*arrays)


def test_a_forward_outside_a_step_is_refused(folder: ModelFolder) -> None:
    session = open_session(folder, capacity=64)
    row = np.array([0], dtype=np.int64)
    with pytest.raises(_core.ForwardFailed, match="step"):
        session.forward(row, row, row)


def test_a_step_may_want_no_logits(folder: ModelFolder) -> None:
    mine = driver(folder)
    assert mine.step([(0, token) for token in TOKENS[:6]], wanted=[]).shape == (0, 384)
    rest = mine.feed(0, TOKENS[6:])
    assert equal(rest, driver(folder).feed(0, TOKENS)[6:])


def test_memory_grows_with_use_up_to_the_capacity(folder: ModelFolder) -> None:
    mine = driver(folder, capacity=48, min_chunk=16, kv_dtype="fp16")
    assert mine.program.kv_bytes == 0
    sizes = []
    for _ in range(4):
        mine.feed(0, TOKENS)
        sizes.append(mine.program.allocated_cells)
    assert sizes == [16, 32, 48, 48]
    assert mine.program.kv_bytes == 48 * folder.manifest.n_layers * 2 * 2 * 16 * 2
    with pytest.raises(_core.CacheFull):
        mine.step([(0, 1)])


@pytest.mark.parametrize("options", [{"kv_dtype": "fp64"}, {"capacity": 0}, {"min_chunk": 0}, {"max_sequences": 0}])
def test_options_that_no_cache_has(folder: ModelFolder, options: dict[str, Any]) -> None:
    with pytest.raises(ModelFolderError, match="no cache can be made"):
        open_session(folder, **{"capacity": 8, **options})


def test_a_damaged_program_is_not_run(folder: ModelFolder, tmp_path: Path) -> None:
    shutil.copytree(folder.path, tmp_path / "copy")
    copy = read_model_folder(tmp_path / "copy")
    data = bytearray(copy.model_path.read_bytes())
    data[-1000] ^= 0xFF
    copy.model_path.write_bytes(data)
    with pytest.raises(ModelFolderError, match="damaged or replaced"):
        open_session(copy, capacity=8)


def test_a_manifest_of_another_model_is_noticed(folder: ModelFolder) -> None:
    wrong = ModelFolder(folder.path, folder.manifest.model_copy(update={"n_kv_heads": 4}))
    with pytest.raises(ModelFolderError, match="describe different models"):
        open_session(wrong, capacity=8)


def test_a_backend_that_this_build_does_not_run(folder: ModelFolder) -> None:
    wrong = ModelFolder(folder.path, folder.manifest.model_copy(update={"backend": "abacus"}))
    with pytest.raises(ModelFolderError, match="'abacus'; this build runs cpu"):
        open_session(wrong, capacity=8)
