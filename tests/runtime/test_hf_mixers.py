"""Layers that mix tokens by something else than attention: the ops, and models that run them for their own code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from agentkv_runtime._core import Cells
from agentkv_runtime.folder.metadata import Kept, LayerShape
from agentkv_runtime.hf.check import _OneSequence
from agentkv_runtime.hf.convolution import conv_shape, short_conv
from agentkv_runtime.hf.linear_attention import linear_attention
from agentkv_runtime.hf.mixers import mix_here
from agentkv_runtime.hf.op import NoActiveCacheError, active_cache
from agentkv_runtime.hf.own_mixers import mix_by_ours
from agentkv_runtime.hf.selective_scan import selective_scan
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


@pytest.mark.parametrize(
    ("groups", "corrects", "by_number", "skips"),
    [(HEADS, False, False, False), (1, False, False, True), (1, True, False, False), (HEADS, True, True, False)],
)
def test_linear_attention_is_its_recurrence(groups: int, corrects: bool, by_number: bool, skips: bool) -> None:
    q, k = (0.5 * torch.randn(1, ROWS, groups, KEYS) for _ in range(2))
    v, beta = torch.randn(1, ROWS, HEADS, VALUES), torch.rand(1, ROWS, HEADS)
    decay = -torch.rand(1, ROWS, HEADS, *([KEYS] if by_number else []))
    skip, position = torch.randn(HEADS) if skips else None, torch.arange(ROWS)

    def op(rows: slice) -> torch.Tensor:
        out: torch.Tensor = linear_attention(
            q[:, rows], k[:, rows], v[:, rows], decay[:, rows], beta[:, rows], corrects, skip, position[rows], 0
        )
        return out

    state, want = torch.zeros(HEADS, KEYS, VALUES, dtype=torch.float64), []
    for t in range(ROWS):
        keys, queries = (each[0, t].double().repeat_interleave(HEADS // groups, 0) for each in (k, q))
        fades = decay[0, t].double().exp().reshape(HEADS, -1, 1)
        state, added = state * fades, v[0, t].double()
        if corrects:
            added = added - torch.einsum("hkv,hk->hv", state, keys)
        state = state + torch.einsum("hk,hv->hkv", keys, beta[0, t, :, None].double() * added)
        row = torch.einsum("hkv,hk->hv", state, queries).float()
        want.append(row if skip is None else row + skip[:, None] * v[0, t])
    for got in in_chunks(op, ROWS, 4):
        torch.testing.assert_close(got, torch.stack(want)[None], rtol=1e-5, atol=1e-5)


def test_a_selective_scan_is_its_recurrence() -> None:
    x, decay, rates = torch.randn(1, ROWS, CHANNELS), torch.rand(1, ROWS, CHANNELS), -torch.rand(KEYS, CHANNELS)
    b, c, position = torch.randn(1, ROWS, KEYS), torch.randn(1, ROWS, KEYS), torch.arange(ROWS)

    def op(rows: slice) -> torch.Tensor:
        out: torch.Tensor = selective_scan(x[:, rows], decay[:, rows], rates, b[:, rows], c[:, rows], position[rows], 0)
        return out

    state, want = torch.zeros(KEYS, CHANNELS, dtype=torch.float64), []
    for t in range(ROWS):
        state = (decay[0, t] * rates).double().exp() * state + b[0, t, :, None].double() * x[0, t]
        want.append((c[0, t].double() @ state).float())
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
            linear_attention(heads, heads, heads[:, 1:], heads[..., 0], None, False, None, position, 0)
        with pytest.raises(RuntimeError, match="decay and beta"):
            linear_attention(heads, heads, heads, heads[..., 0], heads, False, None, position, 0)
        with pytest.raises(RuntimeError, match=r"skip is \[H\]"):
            linear_attention(heads, heads, heads, heads[..., 0], None, False, torch.ones(3), position, 0)
        with pytest.raises(RuntimeError, match=r"x and decay \[1, T, C\]"):
            selective_scan(x, x[:, 1:], x[0, :1], x[..., :1], x[..., :1], position, 0)
        with pytest.raises(RuntimeError, match=r"rates \[N, C\]"):
            selective_scan(x, x, x[0], x[..., :1], x[..., :1], position, 0)


def test_channels_are_cut_into_rows_that_caches_have() -> None:
    assert conv_shape(2048) == LayerShape(2, 1024, 1024, Kept.INPUTS)
    assert conv_shape(96) == LayerShape(1, 96, 96, Kept.INPUTS)
    assert conv_shape(8) == LayerShape(1, 8, 8, Kept.INPUTS)
    assert conv_shape(8 * 1031) == LayerShape(1031, 8, 8, Kept.INPUTS)
    with pytest.raises(ValueError, match="a convolution of 12 channels"):
        conv_shape(12)


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_next", "bamba", "mamba2", "mamba", "kimi", "recurrent_gemma"])
def test_by_itself_a_model_runs_as_before(kind: str) -> None:
    model, tokens = tiny_model(tiny_spec(kind)), torch.arange(3, 20)[None]
    with torch.no_grad():
        want = model(input_ids=tokens, use_cache=False).logits
        for _ in range(2):
            mix_here(model)
            mix_by_ours(model)
        assert torch.equal(model(input_ids=tokens, use_cache=False).logits, want)
