"""Whole lowerings of tiny models: delegate calls, metadata, sizes, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export.cpu.quantize import quantize
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.export.quantization import QuantizationError, Recipe
from agentkv_runtime.hf.load import load_model

from tests.architectures.outcome import random_model
from tests.architectures.tiny_configs import tiny_config
from tests.conftest import FolderFactory
from tests.models import tiny_model, tiny_spec
from tests.rows import one_in


@pytest.mark.parametrize(
    ("kind", "layers", "tables", "windows"),
    one_in(2, [("qwen3", 1, 1, ()), ("phi3", 1, 1, ()), ("gemma3", 2, 2, (8, 0))]),
)
def test_two_delegate_calls_per_layer(kind: str, layers: int, tables: int, windows: tuple[int, ...]) -> None:
    phases: list[str] = []
    spec = tiny_spec(kind, layers=layers)
    lowered = lower_model(tiny_model(spec), max_tokens=16, max_logits=4, progress=phases.append)
    # Per layer one call of ours, and XNNPACK before, between, after, and for the head.
    assert lowered.delegate_calls == {"AgentKVCPU": layers + tables, "XnnpackBackend": layers + 2}
    metadata = lowered.metadata
    assert (metadata.n_layers, metadata.n_kv_heads, metadata.head_dim) == (layers, spec.kv_heads, spec.head_dim)
    assert metadata.windows == windows
    assert lowered.vocab_size == spec.vocab
    assert [phase.split()[0] for phase in phases] == ["trying", "tracing", "lowering", "planning"]


@pytest.mark.parametrize(("quant", "linear_bits"), one_in(2, [("8da4w", 4 + 16 / 32), ("8da8w", 8)]))
def test_quantised_weights_take_the_bytes_that_they_should(quant: Any, linear_bits: float, tmp_path: Path) -> None:
    shape = {"layers": 1, "hidden": 256, "intermediate": 512, "heads": 8, "kv_heads": 4, "head_dim": 32, "vocab": 4096}
    spec = tiny_spec("llama", tied=True, **shape)
    lowered = lower_model(tiny_model(spec), quant=quant, max_tokens=16, max_logits=4)
    path = tmp_path / "model.pte"
    lowered.write(path)
    per_layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512
    linears = per_layer + 4096 * 256  # the tied head becomes a quantised matrix of its own
    implied = linears * linear_bits / 8 + 4096 * 256 * 2
    assert implied < path.stat().st_size < 1.15 * implied


def test_groups_that_do_not_divide_name_the_layer() -> None:
    model = tiny_model(tiny_spec("llama", intermediate=80))
    with pytest.raises(QuantizationError, match=r"down_proj has 80 input features"):
        quantize(model, Recipe("8da4w"))


def test_an_unknown_quantisation_is_refused() -> None:
    with pytest.raises(ExportError, match="no quantisation '4bit': choose from none, file, q4, q5"):
        lower_model(tiny_model(tiny_spec("llama")), quant="4bit")  # type: ignore[arg-type]


def test_bounds_below_two_are_refused() -> None:
    with pytest.raises(ExportError, match="not 1 and 64"):
        lower_model(tiny_model(tiny_spec("llama")), max_tokens=1)


def test_bounds_that_no_memory_holds_are_refused() -> None:
    # A mixture's two choices of every row: [T, 2, 2 x 32] floats.
    with pytest.raises(
        ExportError, match=r"qwen3_moe: with max_tokens 16777216 .* (\S*experts\S*) holds a value of 8.0"
    ) as e:
        lower_model(random_model(tiny_config("qwen3_moe")), max_tokens=1 << 24)
    assert "With max_tokens 8388608 it would take" in str(e.value)


def test_loading(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    folder = tiny_hf_folder("llama")
    assert not load_model(folder).training
    with pytest.raises(ExportError, match=r"no config\.json"):
        load_model(tmp_path)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ExportError, match="weights cannot be loaded"):
        load_model(copy)
    weights = (folder / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[: math.ceil(len(weights) / 2)])
    with pytest.raises(ExportError, match="damaged: it has"):
        load_model(copy)
    (copy / "config.json").write_text('{"model_type": "none-such"}')
    with pytest.raises(ExportError, match="model_type is 'none-such', which transformers"):
        load_model(copy)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_named_as_such(weight: float) -> None:
    model = tiny_model(tiny_spec("llama", layers=1))
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[3] = weight
    with pytest.raises(UnsupportedModelError, match="llama gives logits that are no numbers: a weight is NaN"):
        lower_model(model, max_tokens=8, max_logits=8)
