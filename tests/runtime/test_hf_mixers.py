"""Layers that mix tokens by something else than attention: the ops, and models that run them for their own code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agentkv_runtime._core import Cells
from agentkv_runtime.hf.check import _OneSequence
from agentkv_runtime.hf.convolution import conv_shape, short_conv
from agentkv_runtime.hf.linear_attention import linear_attention
from agentkv_runtime.hf.mixers import mix_here
from agentkv_runtime.hf.op import NoActiveCacheError, active_cache
from agentkv_runtime.metadata import Kept
from agentkv_runtime.torch_backend.cache import TorchCache
from torch.nn import functional

from tests.models import tiny_model, tiny_spec

ROWS, CHANNELS, WIDTH, HEADS, KEYS, VALUES = 9, 16, 4, 2, 8, 16


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def torch_cache() -> tuple[Cells, TorchCache]:
    cells = Cells(64)
    return cells, TorchCache(cells, n_layers=1, capacity=64, kv_dtype="int8", min_chunk=64)


def in_chunks(op: Any, rows: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What `op(slice)` says of all rows through a cache of the torch backend, and through that of one sequence."""
    cells, cache = torch_cache()
    parts, others, one = [], [], _OneSequence()
    for chunk in (slice(0, first), slice(first, rows)):
        with active_cache(one):
            others.append(op(chunk))
        cells.begin_step([0] * (chunk.stop - chunk.start))
        with active_cache(cache):
            parts.append(op(chunk))
        cells.commit_step()
    return torch.cat(parts, 1), torch.cat(others, 1)


@pytest.mark.parametrize("biased", [False, True])
def test_a_convolution_is_torchs_however_rows_are_fed(biased: bool) -> None:
    x, weight = torch.randn(1, ROWS, CHANNELS), torch.randn(CHANNELS, 1, WIDTH)
    bias = torch.randn(CHANNELS) if biased else None
    padded = functional.pad(x.transpose(1, 2), (WIDTH - 1, 0))
    want = functional.conv1d(padded, weight, bias, groups=CHANNELS).transpose(1, 2)
    position = torch.arange(ROWS)
    for got in in_chunks(lambda rows: short_conv(x[:, rows], weight, bias, position[rows], 0), ROWS, 2):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("corrects", [False, True])
def test_linear_attention_is_its_recurrence(corrects: bool) -> None:
    q, k = (0.5 * torch.randn(1, ROWS, HEADS, KEYS) for _ in range(2))
    v, decay = torch.randn(1, ROWS, HEADS, VALUES), -torch.rand(1, ROWS, HEADS)
    beta = torch.rand(1, ROWS, HEADS) if corrects else None
    position = torch.arange(ROWS)

    def op(rows: slice) -> torch.Tensor:
        corrections = beta if beta is None else beta[:, rows]
        out: torch.Tensor = linear_attention(
            q[:, rows], k[:, rows], v[:, rows], decay[:, rows], corrections, position[rows], 0
        )
        return out

    state, want = torch.zeros(HEADS, KEYS, VALUES, dtype=torch.float64), []
    for t in range(ROWS):
        keys, queries, added = k[0, t].double(), q[0, t].double(), v[0, t].double()
        state = state * decay[0, t].double().exp()[:, None, None]
        if beta is not None:
            added = beta[0, t, :, None].double() * (added - torch.einsum("hkv,hk->hv", state, keys))
        state = state + torch.einsum("hk,hv->hkv", keys, added)
        want.append(torch.einsum("hkv,hk->hv", state, queries).float())
    for got in in_chunks(op, ROWS, 4):
        torch.testing.assert_close(got, torch.stack(want)[None], rtol=1e-5, atol=1e-5)


def test_what_does_not_go_together_is_refused() -> None:
    x, position = torch.zeros(1, ROWS, CHANNELS), torch.arange(ROWS)
    with pytest.raises(NoActiveCacheError, match="short_conv"):
        short_conv(x, torch.zeros(CHANNELS, 1, WIDTH), None, position, 0)
    with active_cache(_OneSequence()):
        with pytest.raises(RuntimeError, match=r"weight \[C, 1, W\]"):
            short_conv(x, torch.zeros(CHANNELS, WIDTH), None, position, 0)
        with pytest.raises(RuntimeError, match=r"bias \[C\]"):
            short_conv(x, torch.zeros(CHANNELS, 1, WIDTH), torch.zeros(1), position, 0)
        with pytest.raises(RuntimeError, match="one for each row"):
            short_conv(x, torch.zeros(CHANNELS, 1, WIDTH), None, position[1:], 0)
        heads = torch.zeros(1, ROWS, HEADS, KEYS)
        with pytest.raises(RuntimeError, match=r"\[1, T, H, V\]"):
            linear_attention(heads, heads, heads[:, 1:], heads[..., 0], None, position, 0)
        with pytest.raises(RuntimeError, match="decay and beta"):
            linear_attention(heads, heads, heads, heads[..., 0], heads, position, 0)


def test_channels_are_cut_into_rows_that_caches_have() -> None:
    assert conv_shape(2048) == (2, 1024, 1024, Kept.INPUTS)
    assert conv_shape(96) == (1, 96, 96, Kept.INPUTS)
    assert conv_shape(8) == (1, 8, 8, Kept.INPUTS)
    assert conv_shape(8 * 1031) == (1031, 8, 8, Kept.INPUTS)
    with pytest.raises(ValueError, match="a convolution of 12 channels"):
        conv_shape(12)


@pytest.mark.parametrize("kind", ["qwen3_next", "bamba", "mamba2"])
def test_by_itself_a_model_runs_as_before(kind: str) -> None:
    model, tokens = tiny_model(tiny_spec(kind)), torch.arange(3, 20)[None]
    with torch.no_grad():
        want = model(input_ids=tokens, use_cache=False).logits
        mix_here(model)
        mix_here(model)
        assert torch.equal(model(input_ids=tokens, use_cache=False).logits, want)
