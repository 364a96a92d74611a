"""The op that stands for "write this step's K and V, then attend": `agentkv::update_and_attend`.

To the tracer it is functional and knows nothing of caches. Eager calls go to the cache that `active_cache` installed;
in an exported program the `AgentKVCPU` delegate runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

import torch

from agentkv_runtime.hf.scoring import Scoring

if TYPE_CHECKING:  # they ask for the cache that is active here
    from agentkv_runtime.hf.linear_attention import LinearInputs
    from agentkv_runtime.hf.selective_scan import ScanInputs

__all__ = ["AttendingCache", "NoActiveCacheError", "active", "active_cache", "update_and_attend"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")
_LIBRARY.define(
    "update_and_attend(Tensor q, Tensor k, Tensor v, Tensor position, int layer_id, float scale,"
    " ScalarType out_dtype, int window=0, int chunk=0, float cap=0.0, Tensor? sink_scores=None, Tensor? slopes=None,"
    " bool writes=True) -> Tensor"
)


class AttendingCache(Protocol):
    """The cache operations that eager kernels call."""

    def attend(
        self,
        layer_id: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        position: torch.Tensor,
        scoring: Scoring,
        writes: bool,
    ) -> torch.Tensor:
        """Writes k `[1, Hkv, T, D]` and v `[1, Hkv, T, Dv]`; attends with q `[1, Hq, T, D]`, giving `[1, Hq, T, Dv]`.

        A row at position p sees cached positions <= p of its sequence, as far back as `scoring` says. Without `writes`,
        k and v are those that another call of this step wrote for the layer.
        """
        ...

    def convolve(
        self,
        layer_id: int,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        position: torch.Tensor,
    ) -> torch.Tensor:
        """Writes x `[1, T, C]`; convolves each row with the inputs of the positions before it, giving `[1, T, C]`.

        weight `[C, 1, W]`, bias `[C]`.
        """
        ...

    def attend_linear(self, layer_id: int, inputs: LinearInputs, position: torch.Tensor) -> torch.Tensor:
        """Linear attention (hf/linear_attention.py) from the state after the earlier positions, `[1, T, H, V]`."""
        ...

    def scan(self, layer_id: int, inputs: ScanInputs, position: torch.Tensor) -> torch.Tensor:
        """Selective scan (hf/selective_scan.py) from the state after the earlier positions, `[1, T, C]`."""
        ...


class NoActiveCacheError(RuntimeError):
    """Raised by an op that runs eagerly outside of `active_cache`."""


_active: ContextVar[AttendingCache | None] = ContextVar("agentkv_active_cache", default=None)


@contextmanager
def active_cache(cache: AttendingCache) -> Iterator[AttendingCache]:
    """Makes eager calls of the ops in the block use `cache`, in this thread or task."""
    token = _active.set(cache)
    try:
        yield cache
    finally:
        _active.reset(token)


def active(op: str) -> AttendingCache:
    """The cache that eager calls use. Raises NoActiveCacheError outside of `active_cache`."""
    cache = _active.get()
    if cache is None:
        raise NoActiveCacheError(f"agentkv::{op} ran without a cache: wrap the call in active_cache(cache)")
    return cache


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    position: torch.Tensor,
    window: int,
    chunk: int,
    cap: float,
    of_heads: Sequence[torch.Tensor | None],
) -> None:
    torch._check(
        q.dim() == 4 and k.dim() == 4 and v.dim() == 4,
        lambda: f"update_and_attend takes q, k and v of 4 dimensions, not {q.dim()}, {k.dim()} and {v.dim()}",
    )
    torch._check(
        q.shape[0] == 1 and k.shape[0] == 1 and v.shape[0] == 1,
        lambda: f"update_and_attend takes a batch of 1, not {q.shape[0]}, {k.shape[0]} and {v.shape[0]}",
    )
    torch._check(
        q.shape[1] % k.shape[1] == 0 and k.shape[1] == v.shape[1],
        lambda: f"{q.shape[1]} query heads cannot share {k.shape[1]} key and {v.shape[1]} value heads evenly",
    )
    torch._check(
        q.shape[3] == k.shape[3],
        lambda: f"q and k differ in head_dim: {q.shape[3]} and {k.shape[3]}",
    )
    torch._check(
        position.dim() == 1 and position.dtype == torch.int64,
        lambda: f"position must be int64 of 1 dimension, not {position.dtype} of {position.dim()}",
    )
    for name, tensor in (("k", k), ("v", v)):
        torch._check(
            tensor.shape[2] == q.shape[2],
            lambda name=name, tensor=tensor: f"{name} has {tensor.shape[2]} rows and q {q.shape[2]}",
        )
    torch._check(position.shape[0] == q.shape[2], lambda: f"position has {position.shape[0]} rows and q {q.shape[2]}")
    for name, value in (("window", window), ("chunk", chunk), ("cap", cap)):
        torch._check(value >= 0, lambda name=name, value=value: f"{name} must be 0 (none) or positive, not {value}")
    for each in of_heads:
        torch._check(
            each is None or each.shape == q.shape[1:2],
            lambda each=each: f"sink_scores and slopes have one number per query head: {q.shape[1]}, not {each.shape}",
        )


def _eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    position: torch.Tensor,
    layer_id: int,
    scale: float,
    out_dtype: torch.dtype,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    sink_scores: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    writes: bool = True,
) -> torch.Tensor:
    _check(q, k, v, position, window, chunk, cap, (sink_scores, slopes))
    scoring = Scoring(scale, window, chunk, cap, sink_scores, slopes)
    return active("update_and_attend").attend(layer_id, q, k, v, position, scoring, writes).to(out_dtype)


def _fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    position: torch.Tensor,
    layer_id: int,
    scale: float,
    out_dtype: torch.dtype,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    sink_scores: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    writes: bool = True,
) -> torch.Tensor:
    _check(q, k, v, position, window, chunk, cap, (sink_scores, slopes))
    return q.new_empty((1, q.shape[1], q.shape[2], v.shape[3]), dtype=out_dtype)


_LIBRARY.impl("update_and_attend", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::update_and_attend", _fake, lib=_LIBRARY)

update_and_attend = torch.ops.agentkv.update_and_attend.default
