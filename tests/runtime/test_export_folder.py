"""An exported folder holds everything that running the model needs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export import export_folder
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.text.tokenizer import Tokenizer

from tests.conftest import FolderFactory
from tests.runtime.chat_styles import STYLES


def test_what_travels_with_the_program(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    src = tmp_path / "older model"
    shutil.copytree(tiny_hf_folder("llama", layers=1), src)
    (src / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((src / "config.json").read_text())
    (src / "config.json").write_text(json.dumps({**config, "eos_token_id": [0, 2]}))
    described = json.loads((src / "tokenizer_config.json").read_text())
    (src / "tokenizer_config.json").write_text(json.dumps({**described, "chat_template": STYLES["chatml"].template}))
    said: list[str] = []
    shares: list[float] = []
    folder = export_folder(
        src,
        tmp_path / "out",
        max_tokens=8,
        max_logits=4,
        recipe="measured",
        progress=said.append,
        done=shares.append,
    )

    folder.verify()
    manifest = folder.manifest
    assert (manifest.max_tokens, manifest.max_logits, manifest.vocab_size) == (8, 4, config["vocab_size"])
    assert (manifest.model_type, manifest.quantization, manifest.n_layers) == ("llama", "q4", 1)
    assert (manifest.backend, manifest.dtype) == ("cpu", "fp32")
    assert (manifest.source, manifest.call_format) == ("older model", "hermes")
    assert manifest.max_positions == config["max_position_embeddings"]
    assert {"executorch", "torch", "transformers"} <= set(manifest.exported_with)
    assert folder.tokenizer.encode("the fox") == Tokenizer.from_folder(src).encode("the fox")
    assert folder.tokenizer.eos_ids[:2] == [0, 2]
    assert folder.tokenizer.has_chat_template
    assert said[0] == "loading torch"
    assert "measuring which weights count" in said
    assert said[-3:] == ["writing the folder", "running it once", "putting it in place"]
    assert shares == sorted(shares)
    assert len(shares) > len(said)  # partitions are counted, too
    assert (shares[0], shares[-1] > 0.9) == (0.0, True)

    # Exporting again replaces what belongs to the model, and nothing else.
    (folder.path / "draft.pte").write_bytes(b"a draft head")
    (folder.path / "notes.txt").write_text("years of work")
    (folder.path / "chat_template.jinja").write_text("of the model before")
    (src / "tokenizer_config.json").unlink()
    again = export_folder(src, tmp_path / "out", max_tokens=4, max_logits=4)
    assert again.draft_path is not None
    assert not again.tokenizer.has_chat_template
    assert again.manifest.call_format == "plain"
    assert read_model_folder(tmp_path / "out").manifest.max_tokens == 4
    names = ["agentkv.json", "draft.pte", "generation_config.json", "model.pte", "notes.txt", "tokenizer.json"]
    assert sorted(path.name for path in again.path.iterdir()) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["older model", "out"]


def test_a_folder_for_mlx_says_so(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    src = tiny_hf_folder("llama", layers=1)
    options: dict[str, Any] = {"backend": "mlx", "quant": "affine4", "dtype": "bf16"}
    manifest = export_folder(src, tmp_path / "out", max_tokens=8, max_logits=4, features=True, **options).manifest
    assert (manifest.backend, manifest.quantization, manifest.dtype) == tuple(options.values())
    assert manifest.feature_dim == 3 * 64


def test_what_a_backend_does_not_have_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="backend cpu has no quantisation 'affine4': choose from none, file, q4, q5"):
        export_folder(tmp_path / "nowhere", tmp_path / "out", quant="affine4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant": "8da8w", "int8": ["lm_head"]}, "only 8da4w keeps some layers at 8 bits"),
        ({"embedding": 8}, "only 8da8w and 8da4w keep the token embedding at 8 bits, and this is q4"),
        ({"embedding": 4}, "only 8da8w and 8da4w keep the token embedding at 4 bits, and this is q4"),
        ({"quant": "none", "calibrate": "text"}, r"only q4, q5, q6, q8 read a calibration text \(text\)"),
        ({"scales": "largest"}, r"only 8da4w has scales to choose \(largest\), and this is q4"),
        ({"calibrate": "x" * 300}, "no file of text. Give one"),
        ({"calibrate": "/no/such/text"}, "/no/such/text: no file of text. Give one to calibrate on"),
        ({"quant": "8da4w", "embedding": 2}, "the token embedding has 16, 8 or 4 bits, not 2"),
    ],
)
def test_recipes_that_do_not_exist_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        export_folder(tmp_path / "nowhere", tmp_path / "out", **options)
