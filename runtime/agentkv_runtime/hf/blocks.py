"""Weights that a file stores as blocks, which a program may run without conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Blocks", "as_outputs", "as_rows", "blocks_of", "forget_blocks", "keep_blocks"]


@dataclass(frozen=True)
class Blocks:
    """A weight `[O, I]`, for experts `[E, O, I]`, in a GGUF file's blocks. Rows are outputs even if the parameter is
    `[I, O]`."""

    type: int
    """GGUF's id of the block type."""
    row_bytes: int
    load: Callable[[], torch.Tensor]
    """Loads the rows, uint8 `[O, row_bytes]` or `[E, O, row_bytes]`, in the order of the parameter's outputs."""


_BLOCKS: Any = WeakIdKeyDictionary()


def keep_blocks(parameter: torch.Tensor, blocks: Blocks) -> None:
    """Records the blocks from which a parameter was dequantised."""
    _BLOCKS[parameter] = blocks


def forget_blocks(parameter: torch.Tensor) -> None:
    """Drops a parameter's blocks, as its value has changed."""
    _BLOCKS.pop(parameter, None)


def as_outputs(transposed: torch.Tensor, upright: nn.Parameter) -> nn.Parameter:
    """The parameter `upright` `[O, I]` with the blocks of `transposed` `[I, O]`, from which it was made."""
    if (blocks := blocks_of(transposed)) is not None:
        keep_blocks(upright, blocks)
    return upright


def as_rows(whole: torch.Tensor, rows: slice, part: nn.Parameter) -> nn.Parameter:
    """The parameter `part`, made of `rows` of `whole`, with the blocks of these rows."""
    if (blocks := blocks_of(whole)) is not None:
        load = blocks.load
        keep_blocks(part, replace(blocks, load=lambda: load()[rows].contiguous()))
    return part


def blocks_of(parameter: torch.Tensor) -> Blocks | None:
    """The blocks from which a parameter was dequantised; None without any."""
    found: Blocks | None = _BLOCKS.get(parameter)
    return found
