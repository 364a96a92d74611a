"""Linear layers and lookups over weights in the blocks of a GGUF file, as one op each."""

from __future__ import annotations

import torch
from torch.nn import functional

from agentkv_runtime._core import unpack_blocks

__all__ = ["block_linear", "block_lookup"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def _weight(rows: torch.Tensor, kind: int) -> torch.Tensor:
    return torch.from_numpy(unpack_blocks(rows.numpy(), kind))


def _linear(x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None, kind: int) -> torch.Tensor:
    return functional.linear(x, _weight(rows, kind), bias)


def _linear_fake(x: torch.Tensor, rows: torch.Tensor, bias: torch.Tensor | None, kind: int) -> torch.Tensor:
    del bias, kind
    return x.new_empty((*x.shape[:-1], rows.shape[0]))


def _lookup(ids: torch.Tensor, rows: torch.Tensor, kind: int, width: int, factor: float) -> torch.Tensor:
    del width
    return _weight(rows[ids], kind) * factor


def _lookup_fake(ids: torch.Tensor, rows: torch.Tensor, kind: int, width: int, factor: float) -> torch.Tensor:
    del kind, factor
    return torch.empty((ids.shape[0], width), device=rows.device)


_LIBRARY.define("block_linear(Tensor x, Tensor rows, Tensor? bias, int kind) -> Tensor")
_LIBRARY.impl("block_linear", _linear, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::block_linear", _linear_fake, lib=_LIBRARY)
_LIBRARY.define("block_lookup(Tensor ids, Tensor rows, int kind, int width, float factor) -> Tensor")
_LIBRARY.impl("block_lookup", _lookup, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::block_lookup", _lookup_fake, lib=_LIBRARY)

# x [..., I] float32, rows [O, bytes] uint8 of blocks of a kind (GGUF's id), bias [O] -> [..., O].
block_linear = torch.ops.agentkv.block_linear.default
# ids [T] int64, rows [V, bytes] uint8 -> [T, width] float32, times the factor.
block_lookup = torch.ops.agentkv.block_lookup.default
