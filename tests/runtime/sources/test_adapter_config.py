"""Adapters that cannot be merged, as far as their config says so: refused before torch is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export.folder import export_folder
from agentkv_runtime.sources.adapter_config import rank_of, read_adapter_config

LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"peft_type": "LOHA"}, UnsupportedModelError, "an adapter of type LOHA; only LORA is read"),
        ({"use_dora": True}, UnsupportedModelError, "uses use_dora"),
        ({"init_lora_weights": "pissa"}, UnsupportedModelError, "changes the weights that it is added to"),
        ({"init_lora_weights": "lora_ga"}, UnsupportedModelError, "changes the weights that it is added to"),
        ({"init_lora_weights": ["eva"]}, UnsupportedModelError, "changes the weights that it is added to"),
        ({"r": None}, ExportError, "no positive number"),
        ({"lora_alpha": "4"}, ExportError, "no positive number"),
        ({"lora_alpha": True}, ExportError, "no positive number"),
        ({"lora_alpha": float("inf")}, ExportError, "no positive number"),
        ({"lora_alpha": 10**400}, ExportError, "no positive number"),
        ({"r": 10**400}, ExportError, "no positive number"),
        ({"rank_pattern": {"(": 2}}, ExportError, "which is no pattern"),
        ({"rank_pattern": {"q_proj": 0}}, ExportError, "no positive number"),
        ({"alpha_pattern": [1]}, ExportError, "which is no object"),
    ],
)
def test_what_is_not_merged(tmp_path: Path, change: dict[str, Any], error: type[Exception], says: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(LORA | change))
    with pytest.raises(error, match=says):
        read_adapter_config(tmp_path)


def test_a_pattern_that_takes_exponential_time_is_refused() -> None:
    with pytest.raises(ExportError, match="takes too long to match"):
        rank_of(LORA | {"rank_pattern": {"(?:[a-z.]|[a-z])*[!?]": 2}}, "model.layers.self.attn." * 20)


def test_what_is(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(LORA))
    assert read_adapter_config(tmp_path) == LORA


def test_an_export_looks_at_its_adapter_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"adapter: no such folder"):
        export_folder(tmp_path / "nowhere", tmp_path / "out", adapter=tmp_path / "adapter")
    with pytest.raises(ExportError, match=r"nowhere\.gguf: no such file"):
        export_folder(tmp_path / "nowhere.gguf", tmp_path / "out")
    script = "import sys, agentkv_runtime.sources.adapter_config; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
