"""Opening a model folder while exports replace it: one model whole, the other whole, or an error that says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

import agentkv as kv
from tests.conftest import FolderFactory

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = 40

# Exports one model and the other into the same folder, without the long work before.
REPLACE = """
import shutil, sys
from itertools import cycle
from pathlib import Path
from agentkv_runtime.folder.staging import install, staged

*sources, out = map(Path, sys.argv[1:])
for source in cycle(sources):
    with staged(out) as staging:
        shutil.copytree(source, staging, dirs_exist_ok=True, copy_function=shutil.copyfile)
        install(staging, out, ("model.pte", "tokenizer.json", "tokenizer_config.json"), "agentkv.json")
"""


async def opened(folder: Path) -> tuple[str, str]:
    """The program's fingerprint, and what the chat template says."""
    async with kv.Context.open(folder, capacity=32, threads=1) as ctx:
        await (await ctx.branch([1, 2, 3])).generate(max_tokens=1)
        return ctx.model_info.fingerprint, ctx.tokenizer.render_chat([{"role": "user", "content": "x"}])


def open_while_replaced(sources: list[Path], out: Path, count: int) -> Counter[str]:
    """How opening `out` so many times ended, while another process replaces it without a pause."""
    whole = {anyio.run(opened, source): source.name for source in sources}
    shutil.copytree(sources[0], out)
    ends: Counter[str] = Counter()
    with subprocess.Popen([sys.executable, "-c", REPLACE, *sources, out], cwd=ROOT) as replacing:
        try:
            for _ in range(count):
                try:
                    ends[whole[anyio.run(opened, out)]] += 1  # a KeyError: half of one and half of the other
                except kv.ModelError:
                    ends["refused"] += 1
            assert replacing.poll() is None
        finally:
            replacing.kill()
    return ends


@pytest.fixture
def sources(tiny_exported_folder: FolderFactory, tmp_path: Path) -> list[Path]:
    """Two models of one shape, whose chat templates say which one it is."""
    for seed in (0, 1):
        folder = shutil.copytree(tiny_exported_folder("llama", seed=seed), tmp_path / f"model-{seed}")
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": folder.name}))
    return [tmp_path / "model-0", tmp_path / "model-1"]


def test_a_folder_that_is_replaced_opens_whole_or_not_at_all(sources: list[Path], tmp_path: Path) -> None:
    assert open_while_replaced(sources, tmp_path / "out", SAMPLE).total() == SAMPLE


@pytest.mark.soak
def test_a_folder_that_is_replaced_opens_whole_or_not_at_all_many_times(sources: list[Path], tmp_path: Path) -> None:
    print(open_while_replaced(sources, tmp_path / "out", int(os.environ.get("AGENTKV_SOAK", "5000"))))
