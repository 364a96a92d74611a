"""Loading programs: what a good file says of itself, and that no bad file stops the process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkv_runtime._core import ExecuTorchProgram, ProgramError
from agentkv_runtime.folder.metadata import read_kv_cache_metadata, write_kv_cache_metadata
from torch import nn

from tests.conftest import FolderFactory

FACTS = {"n_layers": 1, "n_kv_heads": 1, "head_dim": 8}


class Rows(nn.Module):
    """The signature of an agentkv program, and nothing behind it."""

    def forward(self, tokens: torch.Tensor, position: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return (tokens + position).float().index_select(0, indices)[:, None] * torch.ones(1, 4)


class Single(nn.Module):
    """A program of somebody else's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def exported(path: Path, module: nn.Module, inputs: tuple[torch.Tensor, ...], constants: dict[str, Any]) -> Path:
    from executorch.exir import to_edge

    program = to_edge(torch.export.export(module.eval(), inputs), constant_methods=constants)
    path.write_bytes(program.to_executorch().buffer)
    return path


def row_inputs(dtype: torch.dtype = torch.int64) -> tuple[torch.Tensor, ...]:
    return torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=dtype), torch.zeros(2, dtype=torch.int64)


@pytest.fixture(scope="module")
def model(tiny_exported_folder: FolderFactory) -> Path:
    return tiny_exported_folder("llama") / "model.pte"


def patched(model: Path, path: Path, change: Callable[[bytearray], Any]) -> Path:
    data = bytearray(model.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def test_a_program_says_what_it_is(model: Path) -> None:
    program = ExecuTorchProgram(str(model))
    metadata = read_kv_cache_metadata(program.metadata)
    assert (metadata.n_layers, metadata.n_kv_heads, metadata.head_dim) == (2, 2, 16)
    assert program.info == {"vocab_size": 384, "max_tokens": 64, "max_logits": 64, "feature_dim": 0}
    assert program.path == str(model)
    assert program.backend_id == "AgentKVCPU"


def test_windows_are_read(tiny_exported_folder: FolderFactory) -> None:
    program = ExecuTorchProgram(str(tiny_exported_folder("gemma3") / "model.pte"))
    assert program.metadata["kv_cache.windows"] == [8, 0]


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"none\.pte: no such file"):
        ExecuTorchProgram(str(tmp_path / "none.pte"))
    with pytest.raises(ProgramError, match="not a file"):
        ExecuTorchProgram(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\0" * 1000, os.urandom(4096), b"text " * 100])
def test_files_of_another_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(content)
    with pytest.raises(ProgramError, match=r"model\.pte: .*ExecuTorch program"):
        ExecuTorchProgram(str(path))


@pytest.mark.parametrize("kept", [0.0001, 0.01, 0.5, 0.999999])
def test_truncated_files(tmp_path: Path, model: Path, kept: float) -> None:
    path = patched(model, tmp_path / "model.pte", lambda data: data.__delitem__(slice(int(len(data) * kept), None)))
    with pytest.raises(ProgramError, match=r"truncated|bytes long"):
        ExecuTorchProgram(str(path))


def test_a_file_format_of_the_future(tmp_path: Path, model: Path) -> None:
    path = patched(model, tmp_path / "model.pte", lambda data: data.__setitem__(slice(4, 8), b"ET99"))
    with pytest.raises(ProgramError, match="ET99"):
        ExecuTorchProgram(str(path))


def test_damage_is_refused_or_survived_but_never_fatal(tmp_path: Path, model: Path) -> None:
    # In a process of its own: what this is about would take the test runner with it.
    script = tmp_path / "load.py"
    script.write_text(
        "import sys\n"
        "from agentkv_runtime._core import ExecuTorchProgram, ProgramError\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        ExecuTorchProgram(path)\n"
        "    except ProgramError as error:\n"
        "        print('refused', error)\n"
        "print('alive')\n"
    )
    rng = random.Random(0)
    program_size = int.from_bytes(model.read_bytes()[16:24], "little")
    paths = []
    for i in range(60):

        def damage(data: bytearray) -> None:
            for _ in range(rng.choice([1, 4, 16])):
                data[rng.randrange(8, program_size)] = rng.randrange(256)

        paths.append(str(patched(model, tmp_path / f"{i}.pte", damage)))
    done = subprocess.run([sys.executable, str(script), *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("alive\n")
    assert done.stdout.count("refused") > 10


def test_a_program_that_agentkv_did_not_export(tmp_path: Path) -> None:
    path = exported(tmp_path / "foreign.pte", Single(), (torch.zeros(2),), {})
    with pytest.raises(ProgramError, match=r"foreign\.pte: .*agentkv did not export.*agentkv export"):
        ExecuTorchProgram(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache.schema_version": 7}, "version 7 and this runtime reads 1"),
        ({"kv_cache.n_layers": 0}, "n_layers should be one integer from 1"),
        ({"kv_cache.head_dim": "wide"}, "head_dim is not made of integers"),
        ({"kv_cache.windows": [1, 2, 3]}, "3 sliding windows for 1 layers"),
    ],
)
def test_constants_that_cannot_be_understood(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    constants = {**write_kv_cache_metadata(**FACTS), **change}
    path = exported(tmp_path / "model.pte", Single(), (torch.zeros(2),), constants)
    with pytest.raises(ProgramError, match=message):
        ExecuTorchProgram(str(path))


def test_a_forward_of_another_shape(tmp_path: Path) -> None:
    constants = write_kv_cache_metadata(**FACTS)
    path = exported(tmp_path / "single.pte", Single(), (torch.zeros(2),), constants)
    with pytest.raises(ProgramError, match=r"takes 1 inputs, but agentkv runs forward\(tokens"):
        ExecuTorchProgram(str(path))
    path = exported(tmp_path / "floats.pte", Rows(), row_inputs(torch.float32), constants)
    with pytest.raises(ProgramError, match="input 0 of its forward is not a row of int64"):
        ExecuTorchProgram(str(path))


def test_a_program_for_another_backend(tmp_path: Path) -> None:
    path = exported(tmp_path / "model.pte", Rows(), row_inputs(), write_kv_cache_metadata(**FACTS))
    with pytest.raises(ProgramError, match="nothing for the backend AgentKVCPU, only for: none"):
        ExecuTorchProgram(str(path))


def test_a_backend_that_is_not_here(tmp_path: Path, model: Path) -> None:
    def rename(data: bytearray) -> None:
        data[:] = data.replace(b"XnnpackBackend", b"XnnpackBackenT")

    path = patched(model, tmp_path / "model.pte", rename)
    with pytest.raises(ProgramError, match=r"needs the backend XnnpackBackenT.*it has: .*AgentKVCPU"):
        ExecuTorchProgram(str(path))


def test_another_runner_without_a_cache_is_told_so(tiny_exported_folder: FolderFactory) -> None:
    # executorch's own runner in the same process finds our backends, and knows nothing of the key.
    script = (
        "import sys\n"
        "from executorch.runtime import Runtime\n"
        "from agentkv_runtime.backends import load_backend\n"
        "for name, path in zip(('cpu', 'mlx'), sys.argv[1:]):\n"
        "    load_backend(name)\n"
        "    program = Runtime.get().load_program(path)\n"
        "    try:\n"
        "        program.load_method('forward')\n"
        "    except RuntimeError as error:\n"
        "        print('refused', name)\n"
    )
    models = [str(tiny_exported_folder("llama", backend=name) / "model.pte") for name in ("cpu", "mlx")]
    done = subprocess.run([sys.executable, "-c", script, *models], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("refused")] == ["refused cpu", "refused mlx"]
    assert done.stderr.count("cache_key") >= 2
