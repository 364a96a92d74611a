"""What instructions of a blob say of weights: how they are packed, and under which name they lie in the program."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

__all__ = ["Blocks", "Weight"]


@dataclass
class Weight:
    """Packed weights of linear layers over the same rows, one below the other, which lie in the program by name."""

    bits: int
    group: int
    parts: list[tuple[Any, ...]]
    """Tensors of each layer, perhaps still to be loaded: codes `[O, I]` int8 and scales `[O, I / group]` float32, or
    `[E, O, I]` and `[E, O, I / group]` of one with experts; at 32 bits one of float32."""
    name: str = ""
    """Known once it is packed."""

    def pack(self) -> bytes:
        """The name, as its length and bytes, then bits and group."""
        name = self.name.encode()
        return struct.pack("<I", len(name)) + name + struct.pack("<II", self.bits, self.group)


@dataclass
class Blocks:
    """Weights in the blocks of a GGUF file, one below the other, which lie in the program by name."""

    type: int
    """GGUF's id of the type of blocks."""
    parts: list[Any]
    """What has the rows of each layer, `[O, bytes]` uint8, or `[E, O, bytes]` of one with experts: a tensor, perhaps
    still to be loaded, or a part of a file."""
    name: str = ""
    """Known once it is packed."""

    def pack(self) -> bytes:
        """The name, as its length and bytes, then the type."""
        name = self.name.encode()
        return struct.pack("<I", len(name)) + name + struct.pack("<I", self.type)
