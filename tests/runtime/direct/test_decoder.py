"""Every family is held to today's exporter: what is written without torch is what tracing the same model gives, byte
for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.export.direct.decoder import FAMILIES, Decoder
from agentkv_runtime.export.direct.writing import write_program
from agentkv_runtime.gguf.architectures import describe
from agentkv_runtime.gguf.file import open_file
from gguf import GGMLQuantizationType as Q

from tests.rows import one_in
from tests.runtime.direct.traced import MAX_LOGITS, MAX_TOKENS, Parts, traced_parts
from tests.runtime.gguf import tiny_files
from tests.runtime.gguf.rows import ARCHITECTURES


def mixed(name: str) -> Q:
    """As files of mixed types have them: layers over the same rows of one or of two."""
    return Q.Q8_0 if any(part in name for part in ("attn_v", "blk.1.attn_k", "blk.0.ffn_up", "output")) else Q.Q4_0


ROWS = {name: row for name, row in ARCHITECTURES.items() if row.config["model_type"] in FAMILIES}


def written_parts(decoder: Decoder, place: Path) -> Parts:
    write_program(decoder, place, MAX_TOKENS, MAX_LOGITS, lambda share: None)
    return Parts.of(place.read_bytes())


def test_every_family_is_tried() -> None:
    assert {row.config["model_type"] for row in ROWS.values()} == FAMILIES.keys()


@pytest.mark.parametrize(
    ("name", "qtype"), one_in(12, [*((name, mixed) for name in ROWS), ("llama", Q.F32), ("gemma3", Q.Q5_1)])
)
def test_a_program_is_the_one_that_tracing_gives(name: str, qtype: Any, tmp_path: Path) -> None:
    row = ROWS[name]
    path = tmp_path / "model.gguf"
    tiny_files.write_file(path, row, tiny_files.tiny_model(row), qtype)
    description = describe(open_file(path))
    want = traced_parts(path, tmp_path / "described")
    got = written_parts(Decoder(description.config, description.weights()), tmp_path / "model.pte")
    if got.blobs != want.blobs:  # models compute the tables of their layer types in the order of a set of names
        decoder = Decoder(description.config, description.weights())
        decoder.__dict__["_tables"] = dict(reversed(decoder._tables.items()))
        got = written_parts(decoder, tmp_path / "model.pte")
    assert got.named == want.named
    assert got.blobs == want.blobs
    assert (got.memory, got.constants) == (want.memory, want.constants)
