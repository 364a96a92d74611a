"""References of a blob's instructions to packed weights, which lie in the program as named data."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Blocks", "Weight"]


@dataclass
class Weight:
    """Quantised or float weights of linear layers over the same rows, concatenated; named data of the program."""

    bits: int
    group: int
    parts: list[tuple[Any, ...]]
    """Tensors of each layer, perhaps not loaded yet: codes `[O, I]` int8 and scales `[O, I / group]` float32, or
    `[E, O, I]` and `[E, O, I / group]` for experts; at 32 bits a single float32 tensor."""
    name: str = ""
    """Name of the data; empty until the weights are packed."""
    layers: list[tuple[str, int]] = field(default_factory=list)
    """Name and number of outputs of each linear layer, in the order of `parts`; empty for lookups and experts."""

    def pack(self) -> bytes:
        """Packs the name (length and bytes), bits and group."""
        name = self.name.encode()
        return struct.pack("<I", len(name)) + name + struct.pack("<II", self.bits, self.group)


@dataclass
class Blocks:
    """Weights in GGUF's blocks, concatenated; named data of the program."""

    type: int
    """GGUF's id of the block type."""
    parts: list[Any]
    """Rows of each layer, uint8 `[O, bytes]`, for experts `[E, O, bytes]`: a tensor, perhaps not loaded yet, or
    `RowBlocks` of a file."""
    name: str = ""
    """Name of the data; empty until the weights are packed."""
    layers: list[tuple[str, int]] = field(default_factory=list)
    """Name and number of outputs of each linear layer, in the order of `parts`; empty for lookups and experts."""

    def pack(self) -> bytes:
        """Packs the name (length and bytes) and the type."""
        name = self.name.encode()
        return struct.pack("<I", len(name)) + name + struct.pack("<I", self.type)
