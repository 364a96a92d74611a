"""What a layer of a program may pass its rows through."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Gate"]


class Gate(IntEnum):
    """What a layer passes its rows through."""

    SILU = 0
    TANH_GELU = 1
    SIGMOID = 2
    SOFTPLUS = 3
