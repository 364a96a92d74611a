"""Exports that hold a partition's weights at a time: the same programs as those of models that are held as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export import export_folder
from agentkv_runtime.export.cpu.codes import Codes
from agentkv_runtime.export.cpu.embeddings import PackedEmbedding
from agentkv_runtime.export.cpu.scales import quantized_weight
from agentkv_runtime.export.first_run import probe_tokens
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.export.opening import open_model
from agentkv_runtime.export.quantization import QuantizationError, Recipe
from agentkv_runtime.export.spill import spilled, spilling_to
from agentkv_runtime.folder.model_folder import ModelFolder
from agentkv_runtime.hf import deferred
from agentkv_runtime.hf.deferred import present
from agentkv_runtime.hf.load import load_model, stream_model
from agentkv_runtime.programs import open_session
from executorch.exir._serialize._cord import FileBackedData

from tests.conftest import FolderFactory
from tests.models import tiny_model, tiny_spec
from tests.rows import one_in

SMALL: dict[str, Any] = {"max_tokens": 8, "max_logits": 8}


@pytest.mark.parametrize(
    ("kind", "quant"), one_in(4, [("qwen3", "8da4w"), ("qwen3", "none"), ("phi3", "8da8w"), ("llama", "8da4w")])
)
def test_streamed_and_whole_models_lower_to_the_same_bytes(
    kind: str, quant: Any, tiny_hf_folder: FolderFactory, tmp_path: Path
) -> None:
    folder = tiny_hf_folder(kind, layers=2)
    streamed = stream_model(folder)
    assert streamed is not None
    programs = []
    for model in (load_model(folder), streamed):
        recipe = Recipe(quant, scales="largest")
        with spilling_to(tmp_path):
            lower_model(model, quant=recipe, **SMALL).write(tmp_path / "model.pte")
        programs.append((tmp_path / "model.pte").read_bytes())
        (tmp_path / "model.pte").unlink()
        assert bool(recipe.errors) == (quant != "none")
    assert programs[0] == programs[1]
    assert list(tmp_path.iterdir()) == []


def test_no_more_than_a_partition_is_loaded_at_a_time(
    tiny_hf_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import weakref

    src = tiny_hf_folder("llama", layers=4)
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = total = 0
    original = deferred.taken

    def watched(tensor: Any) -> Any:
        nonlocal most, total
        made = original(tensor)
        alive.add(made)
        held = sum(each.numel() for each in alive)
        most, total = max(most, held), total + made.numel()
        return made

    monkeypatch.setattr("agentkv_runtime.export.cpu.packing.taken", watched)
    model, _ = open_model(src, src, None, [1, 2])
    lower_model(model, **SMALL)
    assert total > 4 * 36_000
    # A layer's feed-forward and the next one's projections, or the head.
    assert most < 0.4 * total


def test_a_weight_that_was_copied_on_the_way_is_missed(
    tiny_hf_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv_runtime.export.cpu.packing.is_deferred", lambda _: False)
    model = stream_model(tiny_hf_folder("llama", layers=1))
    assert model is not None
    with pytest.raises(ExportError, match=r"weights were lost while the program was lowered \(model\."):
        lower_model(model, **SMALL)


def test_large_pieces_wait_in_files_and_small_ones_do_not(tmp_path: Path) -> None:
    large, small = b"x" * 100_000, b"y" * 10
    assert spilled(large) is large
    with spilling_to(tmp_path):
        kept = spilled(large)
        assert isinstance(kept, FileBackedData)
        assert kept.to_bytes() == large
        assert spilled(small) is small
    assert list(tmp_path.iterdir()) == []


def logits(folder: ModelFolder, tokens: list[int]) -> Any:
    """Logits `[T, vocabulary]` of a folder's program."""
    session = open_session(folder, capacity=len(tokens), kv_dtype="fp32", min_chunk=len(tokens), verify=False)
    session.cache.begin_step([0] * len(tokens))
    out: Any = session.forward(np.array(tokens), np.arange(len(tokens)), np.arange(len(tokens)))
    session.cache.commit_step()
    return out


def test_a_mixed_recipe_is_written_down_and_runs(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    src = tiny_hf_folder("llama", layers=2)
    plain = export_folder(src, tmp_path / "plain", quant="8da4w", **SMALL)
    mixed = export_folder(src, tmp_path / "mixed", quant="8da4w", int8=["lm_head", "*.down_proj"], embedding=8, **SMALL)
    tokens = probe_tokens(mixed.tokenizer, mixed.manifest.vocab_size)[:8]
    expected = open_model(src, src, None, tokens)[1]
    plain_errors, errors = plain.manifest.weight_errors, mixed.manifest.weight_errors
    assert set(errors) == {*plain_errors, "the embedding"}
    for name, error in errors.items():
        eight = name in ("lm_head", "the embedding") or name.endswith("down_proj")
        assert (error < 0.01) == eight
        assert eight or error == plain_errors[name]
    off = {folder.path.name: np.abs(logits(folder, tokens) - expected).mean() for folder in (plain, mixed)}
    assert off["mixed"] < off["plain"]


def test_layers_that_lose_most_for_their_size_keep_8_bits(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    src = tiny_hf_folder("gemma3", layers=2)  # which scales its embedding
    folder = export_folder(src, tmp_path / "out", quant="8da4w", int8=["auto"], embedding=4, **SMALL)
    bits, errors = folder.manifest.weight_bits, folder.manifest.weight_errors
    assert set(bits) == set(errors)
    weights = {f"{name}.weight": tensor for name, tensor in load_model(src).named_modules() if name in bits}
    sizes = {name.removesuffix(".weight"): module.weight.numel() for name, module in weights.items()}
    eight = {name for name, each in bits.items() if each == 8}
    assert 0 < sum(sizes[name] for name in eight) <= sum(sizes.values()) / 16
    assert all(name.endswith(("k_proj", "v_proj")) for name in eight)  # the smallest
    assert {name for name, error in errors.items() if error < 0.01} == eight
    tokens = probe_tokens(folder.tokenizer, folder.manifest.vocab_size)[:8]
    expected, got = open_model(src, src, None, tokens)[1], logits(folder, tokens)
    assert min(np.corrcoef(row, other)[0, 1] for row, other in zip(got, expected, strict=True)) > 0.95


def test_an_embedding_of_4_bits_is_what_its_codes_say() -> None:
    table = torch.randn((7, 64), generator=torch.Generator().manual_seed(0))
    recipe = Recipe("8da4w", embedding=4)
    codes = Codes(table, 4, recipe, "the embedding")
    embedding = PackedEmbedding(codes, table.shape, 3.0)
    with present(embedding):
        rows = embedding(torch.tensor([[6, 0, 6]]))
    quantized = quantized_weight(table, 4, 32, "search")
    scales = quantized.scales.half().float().repeat_interleave(32, dim=1)
    assert torch.equal(rows[0], (quantized.codes.float() * (scales * 3.0))[[6, 0, 6]])
    assert {-8, 7} <= set(quantized.codes.unique().tolist())
    assert recipe.bits == {"the embedding": 4}


def test_an_embedding_that_4_bits_do_not_fit_is_refused() -> None:
    model = tiny_model(tiny_spec("smollm"))
    before = model.get_input_embeddings()
    with pytest.raises(QuantizationError, match="rows of a multiple of 64, and these have 96: keep it at 8"):
        lower_model(model, quant=Recipe("8da4w", embedding=4), **SMALL)
    assert model.get_input_embeddings() is before


def test_a_pattern_that_names_no_layer_is_refused(tiny_hf_folder: FolderFactory) -> None:
    with pytest.raises(QuantizationError, match=r"no linear layer is called 'layers\.0\.mlp'"):
        lower_model(load_model(tiny_hf_folder("llama")), quant=Recipe("8da4w", int8=("layers.0.mlp",)), **SMALL)
