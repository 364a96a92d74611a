"""The op: what it refuses, where eager calls go, and what it computes through a cache."""

from __future__ import annotations

import pytest
import torch
from agentkv_runtime.export.row_ops import rms_norm, rope, rope_table
from agentkv_runtime.hf.op import NoActiveCacheError, active_cache, update_and_attend
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from tests.runtime.growing_cache import GrowingCache


def qkv(t: int, heads: int = 4, kv_heads: int = 2, dim: int = 16, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn((1, h, t, dim), generator=generator) for h in (heads, kv_heads, kv_heads))


def test_eager_needs_a_cache() -> None:
    q, k, v = qkv(3)
    with pytest.raises(NoActiveCacheError, match="active_cache"):
        update_and_attend(q, k, v, torch.arange(3), 0, 0.25, torch.float32)


def test_the_active_cache_is_restored() -> None:
    q, k, v = qkv(1)
    outer, inner = GrowingCache(), GrowingCache()
    with active_cache(outer):
        with active_cache(inner):
            update_and_attend(q, k, v, torch.arange(1), 0, 0.25, torch.float32)
        update_and_attend(q, k, v, torch.arange(1), 7, 0.25, torch.float32)
    assert set(inner.layers) == {0}
    assert set(outer.layers) == {7}


@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 5], [8, 1]])
def test_chunks_attend_as_causal_attention_over_all(chunks: list[int]) -> None:
    q, k, v = qkv(9)
    want = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    got, at = [], 0
    with active_cache(GrowingCache()):
        for n in chunks:
            rows = slice(at, at + n)
            position = torch.arange(at, at + n)
            got.append(update_and_attend(q[:, :, rows], k[:, :, rows], v[:, :, rows], position, 0, 0.3, torch.float32))
            at += n
    torch.testing.assert_close(torch.cat(got, 2), want)


def test_a_window_reaches_the_cache() -> None:
    q, k, v = qkv(6)
    with active_cache(GrowingCache()):
        windowed = update_and_attend(q, k, v, torch.arange(6), 0, 0.3, torch.float32, 1)
    # Alone in its window, a row returns its own value.
    torch.testing.assert_close(windowed, v.repeat_interleave(2, dim=1))


def test_out_dtype() -> None:
    q, k, v = qkv(2)
    with active_cache(GrowingCache()):
        assert update_and_attend(q, k, v, torch.arange(2), 0, 0.3, torch.bfloat16).dtype is torch.bfloat16


def test_fake_kernel_has_the_shape_of_the_values() -> None:
    with FakeTensorMode():
        q, k, v = torch.empty(1, 8, 5, 16), torch.empty(1, 2, 5, 16), torch.empty(1, 2, 5, 24)
        out = update_and_attend(q, k, v, torch.empty(5, dtype=torch.int64), 0, 0.25, torch.float16)
        assert out.shape == (1, 8, 5, 24)
        assert out.dtype is torch.float16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 4, 3, 16)}, "batch of 1"),
        ({"q": torch.zeros(1, 3, 3, 16)}, "cannot share"),
        ({"q": torch.zeros(1, 4, 3, 8)}, "head_dim: 8 and 16"),
        ({"k": torch.zeros(1, 2, 2, 16)}, "k has 2 rows and q 3"),
        ({"v": torch.zeros(1, 2, 16)}, "4 dimensions"),
        ({"position": torch.arange(4)}, "position has 4 rows"),
        ({"position": torch.arange(3).float()}, "int64"),
        ({"window": -1}, "window"),
    ],
)
def test_bad_arguments_are_refused_before_the_cache_sees_them(change: dict[str, object], message: str) -> None:
    q, k, v = qkv(3)
    args: dict[str, object] = {"q": q, "k": k, "v": v, "position": torch.arange(3), "window": 0} | change
    cache = GrowingCache()
    with active_cache(cache), pytest.raises(RuntimeError, match=message):
        update_and_attend(args["q"], args["k"], args["v"], args["position"], 0, 0.25, torch.float32, args["window"])
    assert not cache.layers


def test_rms_norm() -> None:
    x, weight = torch.randn(1, 3, 5, 8), torch.randn(8)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), functional.rms_norm(x, (8,), weight, 1e-5))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_by_the_position(interleaved: bool) -> None:
    position, inv_freq = torch.tensor([0, 1, 5]), torch.tensor([1.0, 0.5, 0.25])
    x = torch.randn(1, 2, 3, 8)
    y = rope(x, rope_table(position, inv_freq, 1.0), interleaved)
    pairs = [(0, 1), (2, 3), (4, 5)] if interleaved else [(0, 3), (1, 4), (2, 5)]
    for i, (a, b) in enumerate(pairs):
        turn = torch.polar(torch.ones(3), position * inv_freq[i])
        want = torch.complex(x[..., a], x[..., b]) * turn
        torch.testing.assert_close(torch.complex(y[..., a], y[..., b]), want)
    assert torch.equal(y[..., 6:], x[..., 6:])
