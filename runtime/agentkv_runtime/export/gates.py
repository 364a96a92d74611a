"""Activation functions of a program's gates."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Gate"]


class Gate(IntEnum):
    """Activation function of a gate."""

    SILU = 0
    TANH_GELU = 1
    SIGMOID = 2
    SOFTPLUS = 3
