"""Exported programs run by MLX, against the models that they were exported from.

Programs are kept between runs (see ExportCache): their export is repeated when something that they come from changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from agentkv_runtime import _core
from agentkv_runtime.backends import load_backend
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.export.mlx.affine import affine_dequantize, affine_quantize, group_size
from agentkv_runtime.hf.op import active_cache
from agentkv_runtime.hf.wrapper import CachedForward
from torch import nn

from tests.export_cache import ExportCache
from tests.models import tiny_model, tiny_spec
from tests.rows import in_turn, one_in
from tests.runtime.growing_cache import GrowingCache
from tests.runtime.test_export_models import CONFIGS, build

load_backend("mlx")

Logits = npt.NDArray[np.float32]
N = 20
SQUARE = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) / 8


def logits_of(model: Any) -> Logits:
    """transformers' own logits `[N, vocab]`; before the model is used up."""
    with torch.no_grad():
        rows: Logits = model(torch.arange(3, 3 + N)[None], use_cache=False).logits[0].float().numpy()
    return rows


def run(cache: ExportCache, name: str, model: Callable[[], Any], **options: Any) -> Logits:
    """The same rows by the exported program, in chunks."""

    def export(out: Path) -> None:
        lowered = lower_model(model(), backend="mlx", max_tokens=16, max_logits=16, **options)
        assert lowered.delegate_calls == {"AgentKVMLX": 1}
        out.mkdir()
        lowered.write(out / "model.pte")

    path = cache.get(f"mlx-program-{name}", export) / "model.pte"
    session: Any = _core.ExecuTorchProgram(str(path), "AgentKVMLX").make_session(
        capacity=64, kv_dtype="fp32", min_chunk=16
    )
    rows = []
    for start, end in ((0, 9), (9, 10), (10, N)):
        session.cache.begin_step([0] * (end - start))
        rows.append(session.forward(np.arange(3 + start, 3 + end), np.arange(start, end), np.arange(end - start)))
        session.cache.commit_step()
    return np.concatenate(rows)


@pytest.mark.parametrize("name", one_in(9, CONFIGS))
def test_architectures(name: str, export_cache: ExportCache) -> None:
    want = logits_of(build(CONFIGS[name]()))
    assert want.std() > 0.1
    got = run(export_cache, name, lambda: build(CONFIGS[name]()))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def unary(x: torch.Tensor) -> torch.Tensor:
    a = x.abs() + 0.5
    y = a.log() + a.sqrt() * a.rsqrt() + a.reciprocal() + (-a).exp() + x.sin() * x.cos()
    y = y + torch.log1p(a) + torch.expm1(-a) + torch.floor(a)
    return y + torch.tanh(x) + torch.sigmoid(x) + torch.relu(x) + torch.erf(x) + nn.functional.gelu(x)


def binary(x: torch.Tensor) -> torch.Tensor:
    y = 2 - x * 0.5 + torch.sub(x, x**2, alpha=0.25) + x.abs().pow(1.5) / (1 + x**2)
    y = torch.maximum(y, x) - torch.minimum(y, x).clamp(-1.5, 2) + x.clamp(min=0.1)
    return torch.where((x > 0.3) == (x <= 1), y, -x) + torch.where(torch.logical_not(x >= 0), x, 0.5)


def promoted(x: torch.Tensor) -> torch.Tensor:
    signs = (x > 0).to(torch.int32) * 2 - 1
    wide = x.float() * torch.tensor(0.3) + signs / 3
    everywhere = torch.full_like(x, 0.5).masked_fill(~(x > 0), 0.25)
    return wide.to(x.dtype) + torch.full((1, 1, x.shape[-1]), 0.25).to(x.dtype) * everywhere


def reduced(x: torch.Tensor) -> torch.Tensor:
    y = x - x.mean(-1, keepdim=True) + x.amax(-1)[..., None] - x.amin(dim=-1, keepdim=True)
    return y.softmax(-1) * x + x.unflatten(-1, (4, -1)).sum((2, 3), keepdim=True).squeeze(3)


def moved(x: torch.Tensor) -> torch.Tensor:
    a, b, c = x.split((16, 32, 16), -1)
    y = torch.cat((c, b[..., ::2], b[..., -16:], a), -1) + torch.stack((a, c, a, c), -2).flatten(-2)
    heads = y.unflatten(-1, (4, 16)).transpose(1, 2)
    mixed = heads[:, [2, 0, 1, -1]] + heads.select(1, 1)[:, None].expand(-1, 4, -1, -1)
    return mixed.permute(0, 2, 1, 3).flatten(2)


def products(x: torch.Tensor) -> torch.Tensor:
    square = SQUARE.to(x.dtype)
    y = x @ square + torch.addmm(square[0], x[0], square)[None]
    heads = x[0].unflatten(-1, (4, 16))
    y = y + torch.bmm(torch.bmm(heads, heads.mT).softmax(-1), heads).flatten(1)[None]
    return y + nn.functional.layer_norm(x, (64,), bias=square[1]) + nn.functional.embedding(torch.tensor([3]), square)


class Mlp(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def model_of(functions: Sequence[Callable[[torch.Tensor], torch.Tensor]]) -> Any:
    """A model whose layers have a function each in their feed-forward's place."""
    model: Any = tiny_model(tiny_spec("llama", layers=len(functions)))
    for layer, function in zip(model.model.layers, functions, strict=True):
        layer.mlp = Mlp(function)
    return model


@pytest.mark.parametrize(
    ("functions", "dtype"), in_turn([(unary, promoted, binary), (reduced, moved, products)], ["fp32", "fp16"])
)
def test_operations_compute_what_torch_does(functions: Any, dtype: Any, export_cache: ExportCache) -> None:
    want = logits_of(model_of(functions))
    name = "-".join(function.__name__ for function in functions)
    got = run(export_cache, f"{name}-{dtype}", lambda: model_of(functions), dtype=dtype)
    tolerance = 1e-4 if dtype == "fp32" else 0.1 * want.std()
    assert np.abs(got - want).max() < tolerance


@torch.no_grad()
@pytest.mark.parametrize(("kind", "quant"), one_in(2, in_turn(["llama", "gemma3", "qwen2"], ["affine4", "affine8"])))
def test_quantised_weights_against_the_dequantised(kind: str, quant: Any, export_cache: ExportCache) -> None:
    bits = int(quant[-1])
    reference: Any = tiny_model(tiny_spec(kind))
    for weight in {layer.weight for layer in reference.modules() if isinstance(layer, nn.Linear | nn.Embedding)}:
        group = group_size(weight.shape[1])
        assert group is not None
        q = affine_quantize(weight, bits, group, torch.float32)
        weight.copy_(affine_dequantize(q.packed, q.scales, q.biases, group, bits))
    want = logits_of(reference)
    got = run(export_cache, f"{kind}-{quant}", lambda: tiny_model(tiny_spec(kind)), quant=quant)
    assert np.abs(got - want).max() <= 1e-3 * np.abs(want).max()


@torch.no_grad()
def test_features(tmp_path: Path) -> None:
    model = tiny_model(tiny_spec("qwen3"))
    lowered = lower_model(model, backend="mlx", max_tokens=16, max_logits=16, features="eagle")
    lowered.write(tmp_path / "model.pte")
    assert lowered.features is not None
    program = _core.ExecuTorchProgram(str(tmp_path / "model.pte"), "AgentKVMLX")
    session: Any = program.make_session(capacity=64, kv_dtype="fp32")
    tokens, position = torch.arange(3, 12), torch.arange(9)
    with active_cache(GrowingCache()):
        want_logits, want = CachedForward(tiny_model(tiny_spec("qwen3")), lowered.features.layers)(
            tokens, position, position
        )
    session.cache.begin_step([0] * 9)
    logits = session.forward(tokens.numpy(), position.numpy(), position.numpy())
    session.cache.commit_step()
    np.testing.assert_allclose(logits, want_logits.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(session.features(), want.numpy(), rtol=1e-4, atol=1e-4)
