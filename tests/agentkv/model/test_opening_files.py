"""GGUF files and Hugging Face folders are opened where torch, transformers and ExecuTorch are not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.folder.model_folder import read_model_folder
from gguf import GGMLQuantizationType as Q

import agentkv as kv
from tests.conftest import FolderFactory
from tests.models import VOCAB_SIZE
from tests.rows import one_in
from tests.runtime.gguf import tiny_files
from tests.runtime.gguf.rows import ARCHITECTURES
from tests.runtime.sources.gguf_files import tiny_file

SCRIPT = """
import sys, asyncio
import agentkv as kv

async def main():
    async with kv.Context.open(sys.argv[1], capacity=64) as ctx:
        branch = await ctx.branch([5, 6, 7])
        print(list((await branch.generate(max_tokens=8)).tokens), ctx.model_info.quantization)

try:
    asyncio.run(main())
except kv.ModelError as error:
    print(error)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a process, and of those that it starts, that has no torch."""
    without = tmp_path / "without"
    without.mkdir()
    for name in ("torch", "transformers", "executorch", "torchao"):
        (without / f"{name}.py").write_text(f"raise ImportError('no {name} here', name='{name}')\n")
    return {**os.environ, "PYTHONPATH": str(without), "AGENTKV_HOME": str(tmp_path / "home")}


def said_by(path: Path, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", SCRIPT, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_file_opens_without_torch_and_is_laid_out_once(tmp_path: Path, environment: dict[str, str]) -> None:
    path, _ = tiny_file(tmp_path, "llama", Q.Q4_0)
    first = said_by(path, environment)
    assert first.endswith(" file")
    (manifest,) = (tmp_path / "home" / "models").glob("*/*/agentkv.json")
    written = manifest.parent / "model.pte"
    before = written.stat()
    assert said_by(path, environment) == first
    assert written.stat() == before
    assert json.loads(manifest.read_text())["exported_with"].keys() == {"agentkv-sdk"}
    assert read_model_folder(manifest.parent).manifest.weight_types["model.layers.0.self_attn.q_proj"] == "q4_0"


@pytest.mark.parametrize("kind", one_in(3, ["llama", "qwen3", "gemma3"]))
def test_a_folder_opens_without_torch_and_is_quantised_once(
    kind: str, tiny_hf_folder: FolderFactory, tmp_path: Path, environment: dict[str, str]
) -> None:
    path = tiny_hf_folder(kind)
    first = said_by(path, environment)
    assert first.endswith(" q4")
    (manifest,) = (tmp_path / "home" / "models").glob("*/*/agentkv.json")
    before = (manifest.parent / "model.pte").stat()
    assert said_by(path, environment) == first
    assert (manifest.parent / "model.pte").stat() == before
    said = json.loads(manifest.read_text())
    assert (said["exported_with"].keys(), said["weight_recipe"]) == ({"agentkv-sdk"}, "fixed")


def test_a_folder_that_needs_torch_says_why_and_what_to_install(
    tiny_hf_folder: FolderFactory, tmp_path: Path, environment: dict[str, str]
) -> None:
    said = said_by(tiny_hf_folder("gemma2"), environment)
    assert "models of type gemma2 are not written without torch, so it is traced with torch" in said
    assert "torch is not installed: pip install torch==2.13.0" in said
    assert not list((tmp_path / "home" / "models").glob("*/*"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"device": "cuda"},
            kv.InvalidInput,
            "GGUF files run on backend 'cpu' or 'mlx', which take none",
        ),
        ({"backend": "mlx", "device": "cpu"}, kv.InvalidInput, "backend 'mlx' takes none; leave device out"),
        ({"backend": "torch"}, kv.ModelError, "is no folder, and backend 'torch' runs the folders"),
        ({"backend": "torch", "device": "cpu"}, kv.ModelError, "is no folder, and backend 'torch' runs the folders"),
    ],
)
async def test_a_file_runs_on_no_device_of_torchs(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    path, _ = tiny_file(tmp_path, "llama", Q.Q4_0)
    with pytest.raises(error, match=says):
        async with kv.Context.open(path, capacity=64, **options):
            pytest.fail("opened")


def test_a_file_that_needs_torch_says_what_to_install(tmp_path: Path, environment: dict[str, str]) -> None:
    row = ARCHITECTURES["gpt2"]
    path = tmp_path / "model.gguf"
    tiny_files.write_file(path, row, tiny_files.tiny_model(row, vocab_size=VOCAB_SIZE), Q.Q8_0)
    said = said_by(path, environment)
    assert "torch is not installed: pip install torch==2.13.0, then pip install 'agentkv-sdk[export]'" in said
    assert not list((tmp_path / "home" / "models").glob("*/*"))
