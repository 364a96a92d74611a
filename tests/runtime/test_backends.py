"""Which backend a folder gets, and what its absence says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from agentkv_runtime import _core
from agentkv_runtime.backends import BACKENDS, KV_DTYPES, PROGRAM_BACKENDS, QUANTIZED_KV_DTYPES, load_backend
from agentkv_runtime.errors import BackendError, ModelFolderError
from agentkv_runtime.export.target import Target
from agentkv_runtime.folder.manifest import DType, Quantization
from agentkv_runtime.folder.metadata import KvCacheMetadata
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.hf.dtypes import TORCH_DTYPES
from agentkv_runtime.programs import load_folder, open_session

from tests.conftest import FolderFactory
from tests.runtime.folders import write_folder

OPEN = """
import sys, anyio
import agentkv as kv

async def main() -> None:
    try:
        async with kv.Context.open(sys.argv[1], capacity=64) as ctx:
            print(ctx.model_info.backend)
    except kv.ModelError as error:
        print(error)

anyio.run(main)
"""


def run(script: str, *args: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def fake_mlx(root: Path, core: str) -> str:
    """A PYTHONPATH on which `mlx.core` is what `core` says."""
    (root / "mlx").mkdir(parents=True)
    (root / "mlx" / "__init__.py").write_text("")
    (root / "mlx" / "core.py").write_text(core)
    return os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def folder(tiny_exported_folder: FolderFactory) -> Path:
    return tiny_exported_folder("llama", backend="mlx")


def test_a_backend_is_loaded_under_its_name() -> None:
    assert {name: load_backend(name) for name in PROGRAM_BACKENDS} == {"cpu": "AgentKVCPU", "mlx": "AgentKVMLX"}
    assert load_backend("mlx") == "AgentKVMLX"
    assert {("AgentKVCPU", "full"), ("AgentKVMLX", "full")} <= set(_core.cache_builders())


def test_the_table_uses_the_words_of_manifests_and_caches() -> None:
    assert {quant for backend in BACKENDS.values() for quant in backend.quantizations} == set(get_args(Quantization))
    assert {dtype for backend in BACKENDS.values() for dtype in backend.dtypes} == set(get_args(DType))
    assert set(TORCH_DTYPES) == set(get_args(DType))
    assert all(set(backend.kv_dtypes) == {*TORCH_DTYPES, *QUANTIZED_KV_DTYPES} for backend in BACKENDS.values())
    for dtype in KV_DTYPES:
        assert KvCacheMetadata(1, 1, 64).kv_bytes_per_token(dtype) > 0


@pytest.mark.parametrize("name", PROGRAM_BACKENDS)
def test_every_backend_of_programs_has_a_lowering(name: str) -> None:
    assert Target(name).lowering().title


def test_the_manifest_picks_it(folder: Path) -> None:
    assert run(OPEN, folder) == "mlx\n"


def test_programs_for_the_cpu_do_without_mlx(tmp_path: Path, tiny_exported_folder: FolderFactory) -> None:
    loaded = "print('mlx.core' in sys.modules or 'agentkv_runtime._mlx' in sys.modules)"
    path = fake_mlx(tmp_path, "raise AssertionError('imported')")
    assert run(OPEN + loaded, tiny_exported_folder("llama"), PYTHONPATH=path) == "cpu\nFalse\n"


def test_without_mlx_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    with pytest.raises(BackendError, match=r"for backend 'mlx': .*not installed.*pip install 'agentkv-sdk\[mlx\]'"):
        load_folder(read_model_folder(folder))


def test_the_context_passes_it_on(folder: Path, tmp_path: Path) -> None:
    path = fake_mlx(tmp_path, "raise ModuleNotFoundError(\"No module named 'mlx.core'\")")
    said = run(OPEN, folder, PYTHONPATH=path)
    assert str(folder) in said
    assert "not installed. Install it: pip install 'agentkv-sdk[mlx]'" in said


def test_an_mlx_without_its_library_is_named(folder: Path, tmp_path: Path) -> None:
    path = fake_mlx(tmp_path, "raise ImportError('libmlx.so: cannot open shared object file')")
    said = run(OPEN, folder, PYTHONPATH=path)
    assert "cannot be loaded (libmlx.so: cannot open shared object file)" in said
    assert "pip install 'agentkv-sdk[mlx]'" in said


def test_another_mlx_is_refused_before_it_is_used(folder: Path, tmp_path: Path) -> None:
    said = run(OPEN, folder, PYTHONPATH=fake_mlx(tmp_path, "__version__ = '0.31.0'"))
    built = _core.mlx_version()
    assert f"built with mlx {built} and runs with no other, but mlx 0.31.0 is installed" in said
    assert f"=={built}'" in said


@pytest.mark.skipif(sys.platform != "linux", reason="preloads a library")
def test_the_module_refuses_another_library(tmp_path: Path) -> None:
    source, library = tmp_path / "other.cpp", tmp_path / "other.so"
    source.write_text('namespace mlx::core { const char* version() { return "0.31.0"; } }')
    subprocess.run(["c++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    script = "try:\n    import agentkv_runtime._mlx\nexcept ImportError as error:\n    print(error)\n"
    said = run(script, LD_PRELOAD=str(library))
    assert f"was built with mlx {_core.mlx_version()}, but mlx 0.31.0 is installed" in said


def test_a_build_without_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "mlx_version", lambda: None)
    with pytest.raises(BackendError, match="this build of agentkv has no MLX backend"):
        load_folder(read_model_folder(folder))


def test_a_backend_that_nobody_knows(tmp_path: Path) -> None:
    folder = read_model_folder(write_folder(tmp_path / "model", backend="abacus"))
    with pytest.raises(ModelFolderError, match="'abacus'; this build runs cpu, mlx"):
        load_folder(folder)


def test_cache_options_that_do_not_fit(folder: Path) -> None:
    with pytest.raises(ModelFolderError, match="no cache can be made: head_dim is 16"):
        open_session(read_model_folder(folder), capacity=8, kv_dtype="int4")


def test_a_program_runs_on_its_own_backend_only(folder: Path, tiny_exported_folder: FolderFactory) -> None:
    load_backend("mlx")
    with pytest.raises(_core.ProgramError, match="nothing for the backend AgentKVCPU, only for: AgentKVMLX"):
        _core.ExecuTorchProgram(str(folder / "model.pte"), "AgentKVCPU")
    with pytest.raises(_core.ProgramError, match="nothing for the backend AgentKVMLX"):
        _core.ExecuTorchProgram(str(tiny_exported_folder("llama") / "model.pte"), "AgentKVMLX")
