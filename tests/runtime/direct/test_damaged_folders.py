"""Thousands of damaged Hugging Face folders: exporting one without torch ends in one line that says what to do, and
leaves nothing behind, or the program runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.models import tiny_model, tiny_spec, write_hf_folder, write_tokenizer

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = 150
BATCH = 500
WHOLE = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3")
IN_PARTS = {"llama": torch.bfloat16, "qwen3": torch.float16, "smollm": torch.bfloat16}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of folders."""
    root = tmp_path_factory.mktemp("sources")
    for kind in WHOLE:
        write_hf_folder(tiny_spec(kind), root / kind)
    for kind, dtype in IN_PARTS.items():
        place = root / f"{kind}-in-parts"
        tiny_model(tiny_spec(kind)).to(dtype).save_pretrained(place, max_shard_size="100KB")
        write_tokenizer(place)
    return root


def export_damaged(sources: Path, count: int) -> Counter[str]:
    """How the export of `count` damaged copies ended. Processes of their own: none of them may end one."""
    ends: Counter[str] = Counter()
    for first in range(0, count, BATCH):
        last = min(first + BATCH, count)
        done = subprocess.run(
            [sys.executable, "-m", "tests.runtime.direct.damage", sources, str(first), str(last)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        found = [json.loads(line) for line in done.stdout.splitlines()]
        at = f"seed {first + len(found)}, after {found[-1] if found else None}"
        assert done.returncode == 0, f"{at}: {done.returncode}\n{done.stderr[-4000:]}"
        assert len(found) == last - first
        for each in found:
            assert each["end"] != "CRASHED", each
            ends[each["end"]] += 1
    return ends


def test_a_sample_of_damaged_folders(sources: Path) -> None:
    ends = export_damaged(sources, SAMPLE)
    assert ends.total() == SAMPLE
    assert ends["refused"] > SAMPLE // 2
    assert ends["exported"] > SAMPLE // 20


@pytest.mark.soak
def test_many_damaged_folders(sources: Path) -> None:
    print(export_damaged(sources, int(os.environ.get("AGENTKV_SOAK", "5000"))))
