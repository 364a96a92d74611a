"""Mixtures of experts on MLX: a layer is few operations, and computes what transformers does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.export.mlx.affine import affine_dequantize, affine_quantize, group_size
from agentkv_runtime.export.mlx.affine_experts import affine_expert_linear
from agentkv_runtime.hf.expert_op import expert_linear
from torch import nn

from tests.export_cache import ExportCache
from tests.models import tiny_model, tiny_spec
from tests.rows import one_in
from tests.runtime.test_export_mlx import counts, graph_of
from tests.runtime.test_export_mlx_programs import logits_of, run


def chosen_rows(*, per_choice: bool, experts: int = 4, inputs: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (5, 3, inputs) if per_choice else (5, inputs)
    return torch.randn(shape, generator=generator), torch.randint(experts, (5, 3), generator=generator)


@pytest.mark.parametrize("per_choice", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_experts_stand_for_the_dequantised(bits: int, per_choice: bool) -> None:
    x, chosen = chosen_rows(per_choice=per_choice)
    weight, bias = torch.randn(4, 24, 64), torch.randn(4, 24)
    q = affine_quantize(weight, bits, 32, torch.float32)
    dense = affine_dequantize(q.packed, q.scales, q.biases, 32, bits)
    assert (dense - weight).abs().max() <= (weight.max() - weight.min()) / (1 << bits)
    got = affine_expert_linear(x, chosen, q.packed, q.scales, q.biases, bias, 32, bits)
    torch.testing.assert_close(got, expert_linear(x, chosen, dense, bias))


def test_parts_that_do_not_fit_are_refused() -> None:
    x, chosen = chosen_rows(per_choice=False)
    q = affine_quantize(torch.randn(4, 24, 64), 8, 32, torch.float32)
    with pytest.raises(RuntimeError, match="8-bit codes in groups of 64 do not go with scales"):
        affine_expert_linear(x, chosen, q.packed, q.scales, q.biases, None, 64, 8)
    with pytest.raises(RuntimeError, match="takes x"):
        affine_expert_linear(x[:, :32], chosen, q.packed, q.scales, q.biases, None, 32, 8)


@pytest.mark.parametrize(
    ("quant", "opcode"), one_in(2, [("affine4", "AFFINE_EXPERT_LINEAR"), ("none", "EXPERT_LINEAR")])
)
def test_a_layer_of_experts_is_few_operations(quant: Any, opcode: str) -> None:
    model = tiny_model(tiny_spec("qwen3_moe", layers=1))
    graph = graph_of(lower_model(model, backend="mlx", quant=quant, max_tokens=16, max_logits=4))
    found = counts(graph)
    assert found[opcode] == 2
    assert found["TOP_K"] == found["TAKE_ALONG"] == 1
    assert found["SUM"] == 1, "over the choices"
    experts = [constant.type.sizes[0] for constant in graph.constants if ".experts." in constant.key]
    assert experts == [8] * len(experts)


@torch.no_grad()
@pytest.mark.parametrize("quant", one_in(2, ["affine4", "affine8"]))
def test_quantised_programs_compute_with_the_dequantised(quant: Any, export_cache: ExportCache) -> None:
    bits = int(quant[-1])
    reference: Any = tiny_model(tiny_spec("qwen3_moe"))
    quantised = [layer.weight for layer in reference.modules() if isinstance(layer, nn.Linear | nn.Embedding)]
    quantised += [weight for name, weight in reference.named_parameters() if ".experts." in name]
    for weight in set(quantised):
        group = group_size(weight.shape[-1])
        assert group is not None
        q = affine_quantize(weight, bits, group, torch.float32)
        weight.copy_(affine_dequantize(q.packed, q.scales, q.biases, group, bits))
    want = logits_of(reference)
    got = run(export_cache, f"qwen3-moe-{quant}", lambda: tiny_model(tiny_spec("qwen3_moe")), quant=quant)
    assert np.abs(got - want).max() <= 1e-3 * np.abs(want).max()


@pytest.mark.parametrize("dtype", one_in(2, ["bf16", "fp16"]))
def test_half_precision(dtype: Any, export_cache: ExportCache) -> None:
    """As near as transformers' own rows in that precision, for most of them: a near tie may choose another expert."""
    want = logits_of(tiny_model(tiny_spec("qwen3_moe")))
    half = logits_of(tiny_model(tiny_spec("qwen3_moe")).to({"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]))
    got = run(export_cache, f"qwen3-moe-{dtype}", lambda: tiny_model(tiny_spec("qwen3_moe")), dtype=dtype)
    error, theirs = (np.median(np.abs(rows - want).max(-1)) for rows in (got, half))
    assert 0 < error <= 1.5 * theirs
