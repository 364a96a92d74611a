"""An export is run before anybody gets it: what cannot be opened, or says something else than its model, is none."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export import export_draft, export_folder
from agentkv_runtime.export.first_run import _agreement, model_logits, probe_tokens, run_model
from agentkv_runtime.folder.model_folder import ModelFolder, read_model_folder
from agentkv_runtime.hf.load import load_model
from safetensors.torch import load_file, save_file

from tests.conftest import FolderFactory
from tests.runtime.draft_heads import head_weights, write_head

CASES = {
    "exact": {"max_tokens": 64},
    "in chunks of three rows": {"max_tokens": 3},
    "int8": {"quant": "8da8w"},
    "int4": {"quant": "8da4w"},
    "mlx": {"backend": "mlx", "quant": "affine4", "dtype": "bf16"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_program_is_held_to_its_model(
    case: str, tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory
) -> None:
    folder = read_model_folder(tiny_exported_folder("llama", **CASES[case]))
    tokens = probe_tokens(folder.tokenizer, folder.manifest.vocab_size)
    assert len(tokens) == 8
    expected = model_logits(load_model(tiny_hf_folder("llama")), tokens)
    said: list[str] = []
    run_model(folder, tokens, expected, said.append)
    assert said == []
    # A row of another token: no program says it.
    wrong = np.roll(expected, 1, axis=0)
    with pytest.raises(ExportError, match=r"does not compute|something else than the model"):
        run_model(folder, tokens, wrong, said.append)
    if case == "exact":
        run_model(folder, tokens, expected + 5e-4 * np.abs(expected).max(), said.append)
        with pytest.raises(ExportError, match="off by up to"):
            run_model(folder, tokens, expected + 2e-3 * np.abs(expected).max(), said.append)
        with pytest.raises(ExportError, match=r"are \(8, 384\) where the model's are \(8, 383\)|\(8, 384\) logits"):
            run_model(folder, tokens, expected[:, :-1], said.append)


def test_a_program_that_does_not_open_is_refused(tiny_exported_folder: FolderFactory, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_exported_folder("llama"), tmp_path / "copy")
    os.truncate(folder / "model.pte", 4096)
    damaged = ModelFolder(folder, read_model_folder(tiny_exported_folder("llama")).manifest)
    with pytest.raises(ExportError, match="does not run"):
        run_model(damaged, [1], np.zeros((1, 384), dtype=np.float32), print)


def with_weights(src: Path, folder: Path, name: str, value: float) -> Path:
    """A copy of a Hugging Face folder with one weight of one tensor changed."""
    shutil.copytree(src, folder)
    weights = load_file(folder / "model.safetensors")
    weights[name].view(-1)[0] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_what_is_not_finite_is_not_written(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    norm = "model.norm.weight"
    src = with_weights(tiny_hf_folder("llama", layers=1), tmp_path / "nan", norm, float("nan"))
    with pytest.raises(ExportError, match="not finite in transformers"):
        export_folder(src, tmp_path / "out", quant="none", max_tokens=8, max_logits=8)
    # 1e30 is a float32 and no half.
    src = with_weights(tiny_hf_folder("llama", layers=1), tmp_path / "large", norm, 1e30)
    with pytest.raises(ExportError, match=r"not finite\. Download the model again, or try another"):
        export_folder(src, tmp_path / "out", backend="mlx", quant="none", dtype="fp16", max_tokens=8, max_logits=8)
    weights = head_weights()
    weights["norm.weight"][0] = float("nan")
    with pytest.raises(ExportError, match="not finite"):
        export_draft(write_head(tmp_path / "head", weights), tiny_hf_folder("llama"), tmp_path / "out", max_tokens=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["head", "large", "nan"]


@pytest.mark.parametrize(
    ("row", "other", "agreement"),
    [
        ([1.0, 2.0, 4.0], [2.0, 4.0, 8.0], 1.0),
        ([4.0, 2.0, 1.0], [2.0, 4.0, 8.0], -0.9),
        ([1.0, 1.0, 1.0], [2.0, 4.0, 8.0], 0.0),  # a dead program
        ([1.0, 2.0, 4.0], [3.0, 3.0, 3.0], 1.0),  # a model that says nothing
    ],
)
def test_a_dead_program_agrees_with_nothing(row: list[float], other: list[float], agreement: float) -> None:
    alive = [1.0, 2.0, 3.0]
    for rows, others in (([row, alive], [other, alive]), ([alive, row], [alive, other])):
        assert _agreement(np.array(rows, np.float32), np.array(others, np.float32)) == pytest.approx(agreement, abs=0.1)


def test_without_its_backend_a_program_is_not_run(
    tiny_exported_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = read_model_folder(tiny_exported_folder("llama", backend="mlx"))
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    said: list[str] = []
    run_model(folder, [1], None, said.append)
    assert said == ["not run, because backend mlx is not here"]


def test_a_tokenizer_that_does_not_work_is_found_before_anything_is_loaded(
    tiny_hf_folder: FolderFactory, tmp_path: Path
) -> None:
    src = shutil.copytree(tiny_hf_folder("llama"), tmp_path / "src")
    whole = json.loads((src / "tokenizer.json").read_text())
    for text in ("", "{", json.dumps({**whole, "model": {}}), json.dumps({**whole, "decoder": {"type": "CTC"}})):
        (src / "tokenizer.json").write_text(text)
        said: list[str] = []
        with pytest.raises(ExportError, match=r"tokenizer|decoder"):
            export_folder(src, tmp_path / "out", quant="none", progress=said.append)
        assert said == []
    assert [path.name for path in tmp_path.iterdir()] == ["src"]
