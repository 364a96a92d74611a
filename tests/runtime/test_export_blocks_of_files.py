"""GGUF files run in their own blocks: what panels keep, programs beside the dequantised model, sizes, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from agentkv_runtime._core import InvalidTensor, pack_blocks, unpack_blocks
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export import export_folder
from agentkv_runtime.folder.model_folder import ModelFolder
from agentkv_runtime.programs import load_program
from agentkv_runtime.sources.gguf import GGUFWeights
from gguf import GGMLQuantizationType as Q

from tests.blocks import SCALES, TYPES, dequantized, random_blocks
from tests.driver import lost, native_driver
from tests.models import tiny_model, tiny_spec
from tests.runtime.sources.gguf_files import FILES, SHAPE, TOKENS, tiny_file, write_gguf


@pytest.mark.parametrize("name", TYPES)
def test_panels_keep_what_a_file_says_to_the_bit(name: str) -> None:
    rows = random_blocks(name, outputs=67, blocks=3 if TYPES[name][1] > 1 else 30)
    got, want = unpack_blocks(rows, TYPES[name][0]), dequantized(name, rows)
    assert got.shape == want.shape
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


def test_types_are_those_of_the_package_that_reads_files() -> None:
    for name, (kind, inputs, size) in TYPES.items():
        assert Q(kind).name.lower() == name
        assert gguf.GGML_QUANT_SIZES[Q(kind)] == (inputs, size)


@pytest.mark.parametrize("name", [name for name in TYPES if TYPES[name][1] > 1 and name != "mxfp4"])
@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_scales_that_are_no_numbers_are_refused(name: str, scale: float) -> None:
    rows = random_blocks(name, outputs=2, blocks=2)
    begin = SCALES.get(name, (0, 2))[0]
    rows[1, begin : begin + 2] = np.array([scale], np.float16).view(np.uint8)
    with pytest.raises(InvalidTensor, match="block 0 of output 1 has a scale"):
        pack_blocks(rows, TYPES[name][0])


def test_rows_that_are_cut_and_types_that_are_unknown_are_refused() -> None:
    rows = random_blocks("q4_0", outputs=2, blocks=2)
    with pytest.raises(InvalidTensor, match="rows of 35 bytes do not divide into blocks of 18, as q4_0"):
        pack_blocks(np.ascontiguousarray(rows[:, :-1]), TYPES["q4_0"][0])
    with pytest.raises(InvalidTensor, match="block type 16 is not known, only q4_0"):
        pack_blocks(rows, int(Q.IQ2_XXS))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3"])
def test_rows_come_in_the_order_of_the_parameter(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    model = tiny_model(tiny_spec(kind, **SHAPE))
    write_gguf(path, model, kind, Q.Q8_0)
    weights, n = GGUFWeights(path), 0
    for name in weights.names():
        blocks = weights.blocks(name)
        if blocks is None:
            assert weights.load(name).dim() == 1
            continue
        n += 1
        assert np.array_equal(unpack_blocks(blocks.load().numpy(), blocks.type), weights.load(name).numpy())
    assert n >= 8


def exported(tmp_path: Path, kind: str, qtype: Q, tied: bool = True) -> tuple[ModelFolder, Any]:
    """A tiny model's file as a model folder, and the logits of its dequantised weights."""
    path, want = tiny_file(tmp_path, kind, qtype, tied)
    return export_folder(path, tmp_path / "out", max_tokens=64, max_logits=64), want


@pytest.mark.parametrize(("kind", "qtype", "tied"), FILES)
def test_a_file_is_run_in_its_own_blocks(tmp_path: Path, kind: str, qtype: Q, tied: bool) -> None:
    folder, want = exported(tmp_path, kind, qtype, tied)
    manifest = folder.manifest
    assert manifest.quantization == "file"
    assert set(manifest.weight_types.values()) == {qtype.name.lower()}
    program = load_program(folder.path / "model.pte")
    whole = native_driver(program, capacity=64).feed(0, TOKENS)
    for chunks in ((1, 2, 3, 5, 8), (20,), (1,) * 39):
        assert np.array_equal(native_driver(program, capacity=64).feed(0, TOKENS, chunks), whole)
    # Activations have 8 bits where weights are codes; in a float32 file nothing is rounded but sums.
    assert lost(whole, want) < (1e-4 if qtype in (Q.F16, Q.BF16, Q.F32) else 0.05)


def test_a_tied_head_shares_the_bytes_of_the_embedding(tmp_path: Path) -> None:
    sizes = []
    for tied in (True, False):
        place = tmp_path / str(tied)
        place.mkdir()
        folder, _ = exported(place, "llama", Q.Q8_0, tied)
        sizes.append(folder.manifest.model_bytes)
    vocabulary = folder.manifest.vocab_size
    assert sizes[1] - sizes[0] > 0.9 * vocabulary * 256 * 34 / 32


def test_what_has_no_blocks_of_its_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, tiny_model(tiny_spec("llama", **SHAPE)), "llama", Q.Q8_0)
    tiny_model(tiny_spec("llama", **SHAPE)).save_pretrained(tmp_path / "folder")
    with pytest.raises(ExportError, match="quant is 'file', but only a GGUF file has blocks of its own"):
        export_folder(tmp_path / "folder", tmp_path / "out", quant="file")
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}'
    )
    with pytest.raises(ExportError, match=r"with the adapter .* merged into them its weights are others"):
        export_folder(path, tmp_path / "out", quant="file", adapter=tmp_path / "lora")
    assert not (tmp_path / "out").exists()
