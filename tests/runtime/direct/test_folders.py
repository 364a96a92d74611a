"""Hugging Face folders that are quantised while they are read: the program is what tracing the same model gives, and
folders that are damaged or lie are refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export import export_folder
from agentkv_runtime.export.direct import writing
from agentkv_runtime.export.direct.decoder import FAMILIES, Decoder
from agentkv_runtime.export.direct.hf_folder import QuantizedWeights
from agentkv_runtime.export.direct.writing import write_program
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.hf.load import load_model
from agentkv_runtime.hf.plain_config import plain_config
from safetensors.torch import load_file, save_file

from tests.conftest import FolderFactory
from tests.rows import one_in
from tests.runtime.direct.traced import MAX_LOGITS, MAX_TOKENS, Parts
from tests.runtime.gguf import tiny_files
from tests.runtime.gguf.rows import ARCHITECTURES

ROWS = {name: row for name, row in ARCHITECTURES.items() if row.config["model_type"] in FAMILIES}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}


def saved(place: Path, name: str, dtype: torch.dtype = torch.bfloat16, **more: Any) -> Path:
    row = ROWS[name]
    model = tiny_files.tiny_model(row, **more).to(dtype)
    model.save_pretrained(place, max_shard_size="60KB")
    return place


def decoder_of(folder: Path, quant: str = "q4") -> Decoder:
    config = plain_config(folder)
    return Decoder(config, QuantizedWeights(folder, config, quant))


def written(decoder: Decoder, place: Path) -> Parts:
    write_program(decoder, place, MAX_TOKENS, MAX_LOGITS, lambda share: None)
    return Parts.of(place.read_bytes())


def traced(folder: Path, quant: Any) -> tuple[Parts, Recipe]:
    recipe = Recipe(quant)
    lowered = lower_model(load_model(folder), quant=recipe, max_tokens=MAX_TOKENS, max_logits=MAX_LOGITS)
    return Parts.of(lowered.buffer), recipe


@pytest.mark.parametrize(
    ("name", "quant", "dtype", "more"),
    [
        *one_in(8, ((name, "q4", torch.bfloat16, {}) for name in ROWS)),
        *one_in(
            4,
            [
                ("qwen3", "q5", torch.float16, WIDE),
                ("llama", "q4", torch.float32, WIDE),
                ("llama-tied", "q8", torch.bfloat16, {}),
                ("phi3", "q5", torch.bfloat16, WIDE),
                ("mistral-windows", "q4", torch.bfloat16, {"hidden_size": 72, "intermediate_size": 100}),
            ],
        ),
    ],
)
def test_a_program_is_the_one_that_tracing_gives(
    name: str, quant: str, dtype: torch.dtype, more: dict[str, Any], tmp_path: Path
) -> None:
    folder = saved(tmp_path / "source", name, dtype, **more)
    want, recipe = traced(folder, quant)
    decoder = decoder_of(folder, quant)
    got = written(decoder, tmp_path / "model.pte")
    if got.blobs != want.blobs:  # models compute the tables of their layer types in the order of a set of names
        decoder.__dict__["_tables"] = dict(reversed(decoder._tables.items()))
        got = written(decoder, tmp_path / "model.pte")
    assert got.named == want.named
    assert got.blobs == want.blobs
    assert (got.memory, got.constants) == (want.memory, want.constants)
    called = {re.sub(r"mlp\.(gate|up|down)$", r"mlp.\1_proj", layer): error for layer, error in recipe.errors.items()}
    assert decoder.errors() == pytest.approx(called)


def test_pieces_of_weights_are_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "source", "llama")
    whole = decoder_of(folder)
    want = written(whole, tmp_path / "whole.pte")
    monkeypatch.setattr(writing, "_PIECE_BYTES", 1)
    in_pieces = decoder_of(folder)
    assert written(in_pieces, tmp_path / "pieces.pte") == want
    assert in_pieces.errors() == pytest.approx(whole.errors())


def test_what_was_chosen_is_in_the_manifest(
    tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory, tmp_path: Path
) -> None:
    source = tiny_hf_folder("llama")
    fixed = export_folder(source, tmp_path / "fixed", max_tokens=64).manifest
    measured = export_folder(source, tmp_path / "measured", max_tokens=64, recipe="measured").manifest
    plain = read_model_folder(tiny_exported_folder("llama")).manifest
    assert (fixed.weight_recipe, measured.weight_recipe, plain.weight_recipe) == ("fixed", "measured", None)
    assert "torch" not in fixed.exported_with
    assert "torch" in measured.exported_with
    assert fixed.weight_counts == measured.weight_counts
    assert fixed.weight_errors.keys() == measured.weight_errors.keys()
    assert all(0 < error < 0.2 for error in fixed.weight_errors.values())


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"quant": "8da8w", "recipe": "fixed"}, "only q4, q5, q6, q8 have a recipe"),
        ({"recipe": "fixed", "calibrate": __file__}, "a fixed recipe reads no calibration text"),
    ],
)
def test_choices_that_contradict_each_other_are_refused(
    asked: dict[str, Any], why: str, tiny_hf_folder: FolderFactory, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=why):
        export_folder(tiny_hf_folder("llama"), tmp_path / "out", **asked)


DOWN = "model.layers.1.mlp.down_proj.weight"


def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """The folder's weights, changed."""

    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def said(**settings: Any) -> Callable[[Path], None]:
    """The folder's config with other settings."""

    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))

    return damage


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def renamed(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def indexed(name: str) -> Callable[[Path], None]:
    """The weights in a file of another name, and an index that names this one."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "other.safetensors")
        places = {"weight_map": {DOWN: name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(places))

    return damage


def put(name: str, value: torch.Tensor) -> Callable[[Path], None]:
    return changed(lambda weights: weights.update({name: value}))


HOSTILE: list[tuple[str, Callable[[Path], None], str]] = [
    ("cut", cut, "model.safetensors: damaged"),
    ("no number", put(DOWN, torch.full((64, 128), torch.nan)), "layers.1.mlp.down_proj holds infinities or NaN"),
    ("no norm", put("model.norm.weight", torch.full((64,), torch.inf)), "model.norm.weight holds infinities"),
    ("a shape", put(DOWN, torch.ones(64, 64)), r"down_proj.weight is \[64, 64\], and by its config \[64, 128\]"),
    ("a vector", put(DOWN, torch.ones(64 * 128)), r"is \[8192\], and by its config"),
    ("missing", changed(lambda weights: weights.pop(DOWN)), "1 weights are missing .*down_proj"),
    ("sizes", said(num_hidden_layers=3), "num_hidden_layers is 3, and the weights have 2 layers"),
    ("huge", said(num_hidden_layers=1 << 23), "num_hidden_layers is 8388608"),
    ("tied", said(tie_word_embeddings=True), "its files have another head"),
    ("no head", changed(lambda weights: weights.pop("lm_head.weight")), "1 weights are missing .lm_head.weight"),
    ("elsewhere", indexed("../elsewhere.safetensors"), "names '../elsewhere.safetensors'"),
    ("gone", indexed("gone.safetensors"), "names 1 files that are not there, as gone.safetensors"),
    ("a setting", said(rms_norm_eps="x"), "rms_norm_eps is 'x'"),
]


@pytest.mark.parametrize(("damage", "why"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_folder_that_is_damaged_or_lies_is_refused(
    damage: Callable[[Path], None], why: str, tiny_hf_folder: FolderFactory, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(tiny_hf_folder("llama"), tmp_path / "source"))
    damage(source)
    with pytest.raises(ExportError, match=why):
        export_folder(source, tmp_path / "out", max_tokens=64)
    assert not (tmp_path / "out").exists()


TRACED: list[tuple[str, Callable[[Path], None], str]] = [
    ("more weights", put("model.layers.0.gate", torch.ones(3)), "has no place for 1 of its weights"),
    ("renamed", changed(lambda weights: weights.update(other=weights.pop(DOWN))), "has no place for 1"),
    ("codes", put(DOWN, torch.ones(64, 128, dtype=torch.int8)), "is stored as I8"),
    ("older files", renamed, "no safetensors"),
]


@pytest.mark.parametrize(("damage", "why"), [row[1:] for row in TRACED], ids=[row[0] for row in TRACED])
def test_what_only_torch_may_know_is_left_to_it(
    damage: Callable[[Path], None], why: str, tiny_hf_folder: FolderFactory, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(tiny_hf_folder("llama"), tmp_path / "source"))
    damage(source)
    with pytest.raises(UnsupportedModelError, match=why):
        QuantizedWeights(source, plain_config(source), "q4")


def test_what_follows_from_the_config_may_lie_in_a_file(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = Path(shutil.copytree(tiny_hf_folder("llama"), tmp_path / "source"))
    put("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8))(source)
    config = plain_config(source)
    assert QuantizedWeights(source, config, "q4").floats("model.norm.weight").dtype == np.float32


def test_a_head_that_is_the_embedding_may_lie_beside_it(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = Path(shutil.copytree(tiny_hf_folder("llama"), tmp_path / "source"))
    changed(lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"].clone()}))(source)
    said(tie_word_embeddings=True)(source)
    config = plain_config(source)
    assert "lm_head.weight" not in QuantizedWeights(source, config, "q4").names()
