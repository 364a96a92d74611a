"""GGUF files of other architectures run in their own blocks, however transformers keeps their weights.

One more is a row of `FILES`: the architecture, the type of its blocks, and what is odd about its weights.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from agentkv_runtime.export import export_folder
from agentkv_runtime.programs import load_program
from agentkv_runtime.sources.gguf import load_gguf
from agentkv_runtime.sources.source import described
from gguf import GGMLQuantizationType as Q

from tests.driver import lost, native_driver
from tests.models import VOCAB_SIZE
from tests.rows import one_in
from tests.runtime.gguf.rows import ARCHITECTURES
from tests.runtime.gguf.tiny_files import tiny_model, write_file

TOKENS = [(7 * i) % 29 + 3 for i in range(40)]
FILES = [
    ("gpt2", Q.F32, "kept across"),
    ("phi3", Q.F32, "gate and up in one"),
    ("falcon-40b", Q.F32, "queries, keys and values in one"),
    ("qwen3moe", Q.F32, "experts, gate and up apart in the file"),
    ("gpt-oss", Q.F32, "experts kept across, gate and up by turns, with biases"),
    ("gpt-oss", Q.MXFP4, "as it is published"),
    ("qwen2moe", Q.Q8_0, "a gate that is a vector"),
]


@pytest.mark.parametrize(("name", "qtype", "odd"), one_in(8, FILES), ids=[f"{row[0]}-{row[1].name}" for row in FILES])
def test_a_file_is_run_in_its_own_blocks(tmp_path: Path, name: str, qtype: Q, odd: str) -> None:
    row, path = ARCHITECTURES[name], tmp_path / "model.gguf"
    write_file(path, row, tiny_model(row, vocab_size=VOCAB_SIZE), qtype)
    with described(path) as words, torch.no_grad():
        want = load_gguf(path, words.folder)(torch.tensor(TOKENS)[None]).logits[0].numpy()
    exported = export_folder(path, tmp_path / "out", max_tokens=64, max_logits=64)
    assert exported.manifest.quantization == "file"
    assert set(exported.manifest.weight_types.values()) <= {qtype.name.lower(), "f32"}
    rows = native_driver(load_program(exported.path / "model.pte"), capacity=64).feed(0, TOKENS)
    # Activations have 8 bits where weights are codes; in a float32 file nothing is rounded but sums.
    assert lost(rows, want) < (1e-4 if qtype == Q.F32 else 0.2)
