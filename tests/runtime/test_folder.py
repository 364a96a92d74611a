"""Model folders: what is read, and what a wrong folder is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentkv_runtime.errors import ExportError, ModelFolderError
from agentkv_runtime.export import export_folder
from agentkv_runtime.folder.model_folder import is_hf_folder, is_model_folder, read_model_folder

from tests.models import write_tokenizer
from tests.runtime.folders import write_folder


def test_a_folder_is_read(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    folder = read_model_folder(path)
    assert folder.manifest.vocab_size == 256
    assert folder.model_path == path / "model.pte"
    assert folder.draft_path is None
    assert folder.tokenizer.eos_ids == [1, 2]
    assert folder.generation_config == {"eos_token_id": [1, 2]}
    folder.verify()
    assert is_model_folder(path)
    assert not is_hf_folder(path)


def test_a_draft_is_found(tmp_path: Path) -> None:
    path = write_folder(tmp_path)
    (path / "draft.pte").write_bytes(b"draft")
    assert read_model_folder(path).draft_path == path / "draft.pte"


def test_a_path_that_is_no_model_folder_is_told_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="no such folder"):
        read_model_folder(tmp_path / "nowhere")
    with pytest.raises(ModelFolderError, match=r"no agentkv\.json"):
        read_model_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert is_hf_folder(tmp_path)
    with pytest.raises(ModelFolderError, match=r"Hugging Face folder.*agentkv export"):
        read_model_folder(tmp_path)
    with pytest.raises(ModelFolderError, match="a file"):
        read_model_folder(tmp_path / "config.json")


def test_a_missing_program(tmp_path: Path) -> None:
    path = write_folder(tmp_path)
    (path / "model.pte").unlink()
    with pytest.raises(ModelFolderError, match=r"model\.pte is missing"):
        read_model_folder(path)


def test_a_truncated_program(tmp_path: Path) -> None:
    path = write_folder(tmp_path, b"0123456789")
    (path / "model.pte").write_bytes(b"01234")
    with pytest.raises(ModelFolderError, match="5 bytes, the manifest says 10"):
        read_model_folder(path)


def test_a_changed_program_is_found_by_its_fingerprint(tmp_path: Path) -> None:
    path = write_folder(tmp_path, b"0123456789")
    (path / "model.pte").write_bytes(b"012345678X")
    with pytest.raises(ModelFolderError, match="damaged or replaced"):
        read_model_folder(path).verify()


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_generation_config(tmp_path: Path, text: str) -> None:
    path = write_folder(tmp_path)
    (path / "generation_config.json").write_text(text)
    with pytest.raises(ModelFolderError, match=r"generation_config\.json"):
        _ = read_model_folder(path).generation_config


def hf_folder(path: Path, *, without: str = "") -> Path:
    path.mkdir()
    write_tokenizer(path)
    (path / "config.json").write_text('{"model_type": "bloom"}')
    (path / "model.safetensors").write_text("{}")
    if without:
        (path / without).unlink()
    return path


@pytest.mark.parametrize(
    ("without", "message"),
    [("config.json", "config.json"), ("model.safetensors", "weights"), ("tokenizer.json", "tokenizer.json")],
)
def test_sources_that_cannot_be_exported(tmp_path: Path, without: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export_folder(hf_folder(tmp_path / "src", without=without), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_exported_folder_is_not_exported_again(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="already an exported"):
        export_folder(write_folder(tmp_path / "model"), tmp_path / "out")
    with pytest.raises(ExportError, match="no such folder"):
        export_folder(tmp_path / "nowhere", tmp_path / "out")


def test_a_target_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ExportError, match="left as it is"):
        export_folder(hf_folder(tmp_path / "src"), out)
    assert (out / "thesis.tex").read_text() == "years of work"


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    out = write_folder(tmp_path / "out")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ExportError):
        export_folder(hf_folder(tmp_path / "src"), out, max_tokens=0)
    with pytest.raises(ExportError, match="cannot be loaded as bloom"):
        export_folder(tmp_path / "src", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "src"])
    read_model_folder(out).verify()
