"""GGUF files on MLX: the weights that blocks become, programs beside the dequantised model, what manifests say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.backends import load_backend
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export import export_folder
from agentkv_runtime.export.mlx.affine import AffineWeight, affine_dequantize
from agentkv_runtime.export.mlx.file_weights import file_weight
from agentkv_runtime.export.quantization import QuantizationError, Recipe
from agentkv_runtime.folder.model_folder import ModelFolder
from agentkv_runtime.hf.blocks import Blocks, keep_blocks
from agentkv_runtime.hf.dtypes import TORCH_DTYPES
from agentkv_runtime.programs import open_session
from gguf import GGMLQuantizationType as Q

from tests.blocks import TYPES, dequantized, random_blocks
from tests.driver import lost
from tests.models import tiny_model, tiny_spec
from tests.rows import one_in
from tests.runtime.sources.gguf_files import FILES, SHAPE, TOKENS, tiny_file

load_backend("mlx")

CODES = {"q4_0": 4, "q4_1": 4, "q5_0": 5, "q5_1": 5, "q8_0": 8, "q4_k": 4, "q5_k": 5}
FLOATS = ("f32", "f16", "bf16")
OTHERS = [name for name in TYPES if name not in CODES and name not in FLOATS]


def of_file(name: str, rows: Any) -> torch.Tensor:
    """A weight as it comes out of a file with these rows."""
    weight = torch.from_numpy(dequantized(name, rows))
    keep_blocks(weight, Blocks(TYPES[name][0], rows.shape[1], lambda: torch.from_numpy(rows)))
    return weight


def made(weight: torch.Tensor, dtype: str = "fp32") -> tuple[AffineWeight, Recipe]:
    recipe = Recipe("file")
    became = file_weight(weight, "layer", recipe, TORCH_DTYPES[dtype])
    assert became is not None
    return became, recipe


def by_mlx(weight: AffineWeight) -> Any:
    import mlx.core as mx

    parts = [mx.array(part.float().numpy()) for part in (weight.scales, weight.biases)]
    packed = mx.array(weight.packed.numpy())
    return np.array(mx.dequantize(packed, *parts, group_size=weight.group, bits=weight.bits, stream=mx.cpu))


@pytest.mark.parametrize("name", CODES)
def test_mlx_reads_the_values_of_a_file_to_the_bit(name: str) -> None:
    weight = of_file(name, random_blocks(name, outputs=67, blocks=3))
    became, recipe = made(weight)
    assert (became.bits, became.group) == (CODES[name], 32)
    assert np.array_equal(by_mlx(became), weight.numpy())
    assert (recipe.kinds, recipe.errors) == ({"layer": name}, {"layer": 0})


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", CODES)
def test_narrow_programs_round_scales_and_biases_once(name: str, dtype: str) -> None:
    weight = of_file(name, random_blocks(name, outputs=67, blocks=3))
    exact, _ = made(weight)
    became, recipe = made(weight, dtype)
    assert torch.equal(became.packed.view(torch.int32), exact.packed.view(torch.int32))
    assert torch.equal(became.scales, exact.scales.to(TORCH_DTYPES[dtype]))
    assert torch.equal(became.biases, exact.biases.to(TORCH_DTYPES[dtype]))
    if dtype == "fp16" and not name.endswith("_k"):  # whose numbers are of that precision
        assert recipe.kinds == {"layer": name}
        assert np.array_equal(by_mlx(became), weight.numpy())
    else:
        assert recipe.kinds == {"layer": f"{name} as affine{CODES[name]}"}
        assert 0 < recipe.errors["layer"] < {"fp16": 2**-11, "bf16": 2**-8}[dtype]


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("name", OTHERS)
def test_other_codes_become_8_bits_and_that_is_said(name: str, dtype: str) -> None:
    weight = of_file(name, random_blocks(name, outputs=16, blocks=3))
    became, recipe = made(weight, dtype)
    assert (became.bits, became.group) == (8, 32)
    assert recipe.kinds == {"layer": f"{name} as affine8"}
    back = affine_dequantize(became.packed, became.scales.float(), became.biases.float(), 32, 8)
    assert recipe.errors["layer"] == pytest.approx(float((back - weight).norm() / weight.norm()), rel=1e-3)
    assert 0 < recipe.errors["layer"] < 0.01


@pytest.mark.parametrize(
    ("name", "dtype", "kind"),
    [
        ("f16", "fp32", "f16"),
        ("f16", "fp16", "f16"),
        ("bf16", "fp32", "bf16"),
        ("f32", "fp32", "f32"),
        ("f32", "fp16", "f32 as fp16"),
        ("f16", "bf16", "f16 as bf16"),
    ],
)
def test_floats_stay_floats(name: str, dtype: str, kind: str) -> None:
    recipe = Recipe("file")
    weight = of_file(name, random_blocks(name, outputs=16, blocks=64))
    assert file_weight(weight, "layer", recipe, TORCH_DTYPES[dtype]) is None
    assert recipe.kinds == {"layer": kind}
    assert (recipe.errors["layer"] > 0) == (" as " in kind)


def test_weights_without_blocks_become_8_bits() -> None:
    became, recipe = made(torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(0)))
    assert became.packed.shape == (3, 8, 16)
    assert recipe.kinds == {"layer": "affine8"}


def test_what_does_not_fit_is_refused_by_the_name_of_its_layer() -> None:
    with pytest.raises(QuantizationError, match="layer becomes affine8, which groups 32 weights, but its rows have 80"):
        made(torch.ones(4, 80))
    rows = random_blocks("q8_0", outputs=2, blocks=2)
    rows[1, :2] = np.array([600], np.float16).view(np.uint8)
    weight = of_file("q8_0", rows)
    assert made(weight)[1].kinds == {"layer": "q8_0"}
    with pytest.raises(QuantizationError, match="layer has a scale that is no number, or is too large for fp16"):
        made(weight, "fp16")


def logits_of(folder: ModelFolder) -> Any:
    session = open_session(folder, capacity=64, kv_dtype="fp32", min_chunk=64, verify=False)
    session.cache.begin_step([0] * len(TOKENS))
    tokens, positions = np.array(TOKENS), np.arange(len(TOKENS))
    logits = session.forward(tokens, positions, positions)
    session.cache.commit_step()
    return logits


@pytest.mark.parametrize(("kind", "qtype", "tied"), one_in(6, FILES))
def test_a_program_computes_with_the_values_of_its_file(tmp_path: Path, kind: str, qtype: Q, tied: bool) -> None:
    path, want = tiny_file(tmp_path, kind, qtype, tied)
    folder = export_folder(path, tmp_path / "out", backend="mlx", max_tokens=64, max_logits=64)
    manifest = folder.manifest
    assert manifest.quantization == "file"
    assert set(manifest.weight_types.values()) == {qtype.name.lower()}
    assert set(manifest.weight_errors.values()) == {0}
    assert lost(logits_of(folder), want) < 1e-4


def test_half_precision_stays_near(tmp_path: Path) -> None:
    path, want = tiny_file(tmp_path, "gemma3", Q.Q4_K)
    folder = export_folder(path, tmp_path / "out", backend="mlx", dtype="fp16", max_tokens=64, max_logits=64)
    assert set(folder.manifest.weight_types.values()) == {"q4_k as affine4"}
    assert lost(logits_of(folder), want) < 0.01  # MLX's CPU device sums products of packed weights in half precision


def test_a_tied_head_shares_the_bytes_of_the_embedding(tmp_path: Path) -> None:
    folders = []
    for tied in (True, False):
        place = tmp_path / str(tied)
        place.mkdir()
        path, _ = tiny_file(place, "llama", Q.Q8_0, tied)
        folders.append(export_folder(path, place / "out", backend="mlx", max_tokens=64, max_logits=64))
    tied_to, apart = (folder.manifest for folder in folders)
    table = apart.vocab_size * 256 * (8 + 2 * 32 / 32) / 8
    assert apart.weight_bytes["the embedding"] == apart.weight_bytes["lm_head"] == table
    assert "lm_head" not in tied_to.weight_bytes
    assert apart.model_bytes - tied_to.model_bytes > 0.9 * table


def test_only_files_have_blocks(tmp_path: Path) -> None:
    tiny_model(tiny_spec("llama", **SHAPE)).save_pretrained(tmp_path / "folder")
    with pytest.raises(ExportError, match="quant is 'file', but only a GGUF file has blocks of its own"):
        export_folder(tmp_path / "folder", tmp_path / "out", backend="mlx", quant="file")
