"""Mixtures of experts run in blocks: programs beside the dequantised model, and what the recipe says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from agentkv_runtime.export.blocks.kinds import KINDS
from agentkv_runtime.export.experts import ExpertLinear, own_expert_layers
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.export.quantization import EMBEDDING, QuantizationError, Recipe
from agentkv_runtime.hf.blocks import Blocks, forget_blocks, keep_blocks
from agentkv_runtime.programs import load_program
from gguf import GGMLQuantizationType as Q
from torch import nn

from tests.blocks import quantized
from tests.driver import lost, native_driver
from tests.models import tiny_model, tiny_spec
from tests.rows import one_in

SHAPE: dict[str, Any] = {"hidden": 256, "intermediate": 256, "head_dim": 64, "layers": 2}
TOKENS = [(7 * i) % 29 + 3 for i in range(40)]


def rows_of(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """uint8 `[..., bytes]`."""
    rows = weight.detach().flatten(0, -2)
    packed = quantized(rows, kind) if kind in KINDS else torch.from_numpy(gguf.quantize(rows.numpy(), Q[kind.upper()]))
    return packed.view(torch.uint8).view(*weight.shape[:-1], -1)


@torch.no_grad()
def in_blocks(weight: torch.Tensor, kind: str) -> None:
    """Gives a parameter the value of blocks made from it, and notes them."""
    rows = rows_of(weight, kind)
    stored = rows.numpy().view(np.float16) if kind == "f16" else rows.numpy()
    weight.copy_(torch.from_numpy(gguf.dequantize(stored, Q[kind.upper()]).astype(np.float32)))
    keep_blocks(weight, Blocks(int(Q[kind.upper()]), rows.shape[-1], lambda: rows))


def model_in_blocks(architecture: str, kind: str) -> Any:
    """A tiny model whose experts are in blocks of a kind, and the rest in q8_0."""
    model = tiny_model(tiny_spec(architecture, **SHAPE))
    own_expert_layers(model)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            in_blocks(module.weight, "q8_0")
        elif isinstance(module, ExpertLinear):
            in_blocks(module.weight, kind)
    return model


@pytest.mark.parametrize(
    ("architecture", "kind"),
    one_in(
        4,
        [
            ("qwen3_moe", "q4_k"),
            ("qwen3_moe", "f16"),
            ("gpt_oss", "mxfp4"),
            ("gpt_oss", "q6_k"),
            ("llama4", "q5_1"),
            ("qwen3_next", "q4_0"),
        ],
    ),
)
def test_experts_are_run_in_their_blocks(tmp_path: Path, architecture: str, kind: str) -> None:
    model, recipe = model_in_blocks(architecture, kind), Recipe("file")
    experts = {name: tuple(each.weight.shape) for name, each in model.named_modules() if isinstance(each, ExpertLinear)}
    with torch.no_grad():
        want = model(torch.tensor(TOKENS)[None], use_cache=False).logits[0].numpy()
    lower_model(model, quant=recipe, max_tokens=64, max_logits=64).write(tmp_path / "model.pte")
    inputs, size = gguf.GGML_QUANT_SIZES[Q[kind.upper()]]
    assert {recipe.kinds[name] for name in experts} == {kind}
    assert {recipe.bits[name] for name in experts} == {round(8 * size / inputs)}
    assert {name: recipe.bytes[name] for name in experts} == {
        name: number * outputs * width // inputs * size for name, (number, outputs, width) in experts.items()
    }
    assert recipe.kinds[EMBEDDING] == "q8_0"
    program = load_program(tmp_path / "model.pte")
    whole = native_driver(program, capacity=64).feed(0, TOKENS)
    for chunks in ((1, 2, 3, 5, 8), (20,), (1,) * 39):
        assert np.array_equal(native_driver(program, capacity=64).feed(0, TOKENS, chunks), whole)
    assert lost(whole, want) < 0.05


def test_experts_without_blocks_are_refused() -> None:
    model = model_in_blocks("qwen3_moe", "q4_0")
    forget_blocks(model.model.layers[1].mlp.experts.down_proj.weight)
    with pytest.raises(QuantizationError, match=r"layers\.1\.mlp\.experts\.down_proj has no blocks of its own"):
        lower_model(model, quant="file", max_tokens=64, max_logits=64)
