"""What a program's file is made of, and what becomes of it when something goes wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime._core import InvalidTensor, pack_blocks
from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.export.direct import writing
from agentkv_runtime.export.direct.decoder import Decoder
from agentkv_runtime.export.direct.writing import write_program
from agentkv_runtime.gguf.architectures import describe
from agentkv_runtime.gguf.file import open_file
from agentkv_runtime.gguf.weights import RowBlocks
from gguf import GGMLQuantizationType as Q

from tests.runtime.direct.traced import Parts
from tests.runtime.gguf import tiny_files
from tests.runtime.gguf.rows import ARCHITECTURES


class Changed:
    """Weights of a file, some of them others."""

    def __init__(self, weights: Any, **blocks: RowBlocks | None) -> None:
        self._weights, self._blocks = weights, blocks

    def names(self) -> Any:
        return self._weights.names()

    def blocks(self, name: str) -> RowBlocks | None:
        return self._blocks.get(name.replace(".", "_"), self._weights.blocks(name))

    def floats(self, name: str) -> Any:
        return self._weights.floats(name)


def description(place: Path, name: str = "llama") -> Any:
    row = ARCHITECTURES[name]
    path = place / "model.gguf"
    tiny_files.write_file(path, row, tiny_files.tiny_model(row), Q.Q8_0)
    return describe(open_file(path))


def parts_of(decoder: Decoder, place: Path) -> Parts:
    write_program(decoder, place, 8, 4, lambda share: None)
    return Parts.of(place.read_bytes())


def test_pieces_of_a_weight_are_the_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = description(tmp_path)
    whole = parts_of(Decoder(said.config, said.weights()), tmp_path / "whole")
    monkeypatch.setattr(writing, "_PIECE_BYTES", 1)
    assert parts_of(Decoder(said.config, said.weights()), tmp_path / "pieces") == whole
    head = said.weights().blocks("lm_head.weight")
    assert pack_blocks(head.rows(), head.type) in whole.named.values()


def test_equal_weights_are_in_the_file_once(tmp_path: Path) -> None:
    said = description(tmp_path)
    other = said.weights().blocks("model.layers.0.mlp.down_proj.weight")
    weights = Changed(said.weights(), model_layers_1_mlp_down_proj_weight=other)
    twice = parts_of(Decoder(said.config, said.weights()), tmp_path / "a")
    once = parts_of(Decoder(said.config, weights), tmp_path / "b")
    assert len(once.named) == len(twice.named) - 1


def test_shares_that_are_told_grow_to_one(tmp_path: Path) -> None:
    said = description(tmp_path)
    told: list[float] = []
    write_program(Decoder(said.config, said.weights()), tmp_path / "model.pte", 8, 4, told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_blocks_that_hold_no_numbers_are_refused(tmp_path: Path) -> None:
    said = description(tmp_path)
    head = said.weights().blocks("lm_head.weight")
    rows = head.rows().copy()
    rows[3, :2] = np.array([np.inf], np.float16).view(np.uint8)
    weights = Changed(said.weights(), lm_head_weight=replace(head, rows=lambda: rows))
    with pytest.raises(InvalidTensor, match="output 3 has a scale"):
        write_program(Decoder(said.config, weights), tmp_path / "model.pte", 8, 4, lambda share: None)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "perceiver"}, "perceiver is of no family"),
    ({"hidden_act": "relu"}, "hidden_act"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}, "rope_parameters"),
]


@pytest.mark.parametrize(("more", "why"), REFUSED)
def test_what_no_family_has_is_refused(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    said = description(tmp_path)
    with pytest.raises(UnsupportedModelError, match=why):
        Decoder({**said.config, **more}, said.weights())
