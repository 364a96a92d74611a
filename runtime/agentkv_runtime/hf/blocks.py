"""Weights that a file holds as blocks, which a program may run as they are."""

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
    """A weight `[O, I]`, or of experts `[E, O, I]`, as the blocks of a GGUF file. Rows are outputs in any case, also of
    a parameter that is kept `[I, O]`."""

    type: int
    """The id that GGUF has for the type of its blocks."""
    row_bytes: int
    load: Callable[[], torch.Tensor]
    """Brings the rows, uint8 `[O, row_bytes]` or `[E, O, row_bytes]`, in the order of the parameter's outputs."""


_BLOCKS: Any = WeakIdKeyDictionary()


def keep_blocks(parameter: torch.Tensor, blocks: Blocks) -> None:
    """Notes what a parameter was dequantised from."""
    _BLOCKS[parameter] = blocks


def forget_blocks(parameter: torch.Tensor) -> None:
    """Notes that a parameter has another value than its blocks had."""
    _BLOCKS.pop(parameter, None)


def as_outputs(transposed: torch.Tensor, upright: nn.Parameter) -> nn.Parameter:
    """The parameter whose rows are outputs, with the blocks of the one that it was made from, whose columns are."""
    if (blocks := blocks_of(transposed)) is not None:
        keep_blocks(upright, blocks)
    return upright


def as_rows(whole: torch.Tensor, rows: slice, part: nn.Parameter) -> nn.Parameter:
    """The parameter that is some rows of another one, with the blocks of those."""
    if (blocks := blocks_of(whole)) is not None:
        load = blocks.load
        keep_blocks(part, replace(blocks, load=lambda: load()[rows].contiguous()))
    return part


def blocks_of(parameter: torch.Tensor) -> Blocks | None:
    """What a parameter was dequantised from; None where it has no blocks."""
    found: Blocks | None = _BLOCKS.get(parameter)
    return found
