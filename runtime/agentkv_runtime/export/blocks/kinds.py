"""GGUF's block types that weights can be quantised to.

The layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """One block type: a number is `step * code + base`, with a step and a base per group of a block."""

    name: str
    block: int
    """Numbers in a block."""
    size: int
    """Bytes of a block."""
    group: int
    """Numbers that share a step and a base."""
    top: int
    """Largest code; the smallest is 0."""
    zero: int | None
    """Code of the number 0, if the base follows from the step; None if each group has its own base."""

    def row_bytes(self, inputs: int) -> int:
        """Bytes of a row of `inputs` numbers, a multiple of `block`."""
        return inputs // self.block * self.size

    @property
    def nested(self) -> bool:
        """Whether a group's step and base are small integers times those of its block."""
        return self.group < self.block


KINDS = {
    kind.name: kind
    for kind in (
        Kind("q4_0", 32, 18, 32, 15, 8),
        Kind("q4_1", 32, 20, 32, 15, None),
        Kind("q5_0", 32, 22, 32, 31, 16),
        Kind("q5_1", 32, 24, 32, 31, None),
        Kind("q8_0", 32, 34, 32, 254, 127),
        Kind("q4_k", 256, 144, 32, 15, None),
        Kind("q5_k", 256, 176, 32, 31, None),
        Kind("q6_k", 256, 210, 16, 63, 32),
    )
}
"""Kinds by name, in lower case."""
