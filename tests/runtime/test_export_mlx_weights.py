"""Affine weights: their layout, their error, the modules over them, and what they cost in bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.export.mlx.affine import (
    AffineWeight,
    affine_dequantize,
    affine_embedding,
    affine_linear,
    affine_quantize,
    group_size,
)
from agentkv_runtime.export.mlx.quantize import AffineEmbedding, AffineLinear, quantize_affine
from agentkv_runtime.export.quantization import EMBEDDING, QuantizationError, Recipe

from tests.models import tiny_model, tiny_spec
from tests.rows import one_in

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def weight(rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    matrix = torch.randn(rows, columns, generator=generator)
    matrix[0] = 0.25  # a row without any range
    matrix[1] = matrix[1].abs() + 3  # and one far from zero
    return matrix


def dequantized(w: AffineWeight) -> torch.Tensor:
    return affine_dequantize(w.packed, w.scales, w.biases, w.group, w.bits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "group"), [(128, 64), (96, 32)])
@pytest.mark.parametrize("bits", [4, 8])
def test_each_weight_is_within_half_a_step(bits: int, columns: int, group: int, dtype: str) -> None:
    w = weight(48, columns)
    q = affine_quantize(w, bits, group, DTYPES[dtype])
    assert q.packed.shape == (48, columns * bits // 32)
    assert q.scales.shape == q.biases.shape == (48, columns // group)
    assert q.scales.dtype == q.biases.dtype == DTYPES[dtype]
    exact = affine_dequantize(q.packed, q.scales.float(), q.biases.float(), group, bits)
    # Half a step, and what rounding the scale may take off the last one.
    step = q.scales.float().repeat_interleave(group, dim=-1)
    unit = {"fp32": 2.0**-23, "fp16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    bound = step / 2 + unit * ((1 << bits) * step + w.abs()) + 1e-6
    assert ((exact - w).abs() <= bound).all()


@pytest.mark.parametrize("bits", [4, 5, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_the_layout_is_the_one_of_mlx(bits: int, group: int) -> None:
    import mlx.core as mx

    q = affine_quantize(weight(48, 192), bits, group, torch.float32)
    parts = [mx.array(part.detach().numpy()) for part in (q.packed, q.scales, q.biases)]
    theirs = mx.dequantize(*parts, group_size=group, bits=bits, stream=mx.cpu)
    np.testing.assert_allclose(np.array(theirs), dequantized(q).numpy(), rtol=1e-6, atol=1e-6)
    # What MLX packs itself, we read.
    packed, scales, biases = mx.quantize(mx.array(weight(48, 192).numpy()), group_size=group, bits=bits, stream=mx.cpu)
    assert packed.shape == q.packed.shape
    ours = affine_dequantize(*(torch.from_numpy(np.array(part)) for part in (packed, scales, biases)), group, bits)
    theirs = mx.dequantize(packed, scales, biases, group_size=group, bits=bits, stream=mx.cpu)
    np.testing.assert_allclose(ours.numpy(), np.array(theirs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_eager_ops_compute_with_the_dequantised_weight(bits: int) -> None:
    q = affine_quantize(weight(48, 128), bits, 64, torch.float32)
    x, bias = torch.randn(5, 128), torch.randn(48)
    got = affine_linear(x, q.packed, q.scales, q.biases, bias, q.group, q.bits)
    torch.testing.assert_close(got, x @ dequantized(q).T + bias)
    indices = torch.tensor([[7, 0, 47]])
    rows = affine_embedding(q.packed, q.scales, q.biases, indices, q.group, q.bits)
    torch.testing.assert_close(rows, dequantized(q)[indices])


def test_the_largest_group_that_divides() -> None:
    assert [group_size(width) for width in (128, 96, 80)] == [64, 32, None]


def test_rows_that_no_group_divides_name_the_layer() -> None:
    model = tiny_model(tiny_spec("llama", intermediate=80))
    with pytest.raises(QuantizationError, match=r"affine4 groups .* rows of model\.layers\.0\.mlp\.down_proj have 80"):
        quantize_affine(model, Recipe("affine4"), torch.float32)


def test_a_tied_head_shares_the_bytes_and_a_scaled_embedding_its_factor() -> None:
    model: Any = tiny_model(tiny_spec("gemma3"))
    tokens = torch.arange(6)[None]
    embedded = model.get_input_embeddings()(tokens)
    recipe = Recipe("affine8")
    quantize_affine(model, recipe, torch.float32)
    table = model.get_input_embeddings()
    assert isinstance(table, AffineEmbedding)
    assert isinstance(model.lm_head, AffineLinear)
    assert table.packed is model.lm_head.packed
    assert table.scale == 8.0
    assert recipe.bytes[EMBEDDING] == table.packed.nbytes + table.scales.nbytes + table.biases.nbytes
    assert "lm_head" not in recipe.bytes
    assert set(recipe.bits.values()) == {8}
    assert all(0 < error < 0.01 for error in recipe.errors.values())
    torch.testing.assert_close(table(tokens), embedded, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("quant", "bits", "dtype", "scale_bits"), one_in(2, [("affine4", 4, "fp16", 32), ("affine8", 8, "fp32", 64)])
)
def test_quantised_weights_take_the_bytes_that_they_should(quant: Any, bits: int, dtype: Any, scale_bits: int) -> None:
    shape = {"layers": 1, "hidden": 256, "intermediate": 512, "heads": 8, "kv_heads": 4, "head_dim": 32, "vocab": 4096}
    spec = tiny_spec("llama", tied=True, **shape)
    lowered = lower_model(tiny_model(spec), backend="mlx", quant=quant, dtype=dtype, max_tokens=16, max_logits=4)
    per_layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512
    weights = per_layer + 4096 * 256  # of the table that embedding and head share
    implied = weights * (bits + scale_bits / 64) / 8
    assert implied < len(lowered.buffer) < 1.15 * implied
