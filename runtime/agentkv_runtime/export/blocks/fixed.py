"""What errors in each layer's weight cost where nothing was measured. Imports no torch."""

from __future__ import annotations

__all__ = ["usual_cost"]

_COSTS = {
    "v_proj": 25.0,  # few rows, each of which many queries read
    "k_proj": 6.0,
    "qkv_proj": 6.0,
    "lm_head": 6.0,
}
"""What an error's square costs beside that in other layers: medians of `Importance` over layers of published models."""


def usual_cost(layer: str) -> float:
    """Of the layer of this name; of a tied weight, that of the head."""
    return _COSTS.get(layer.rpartition(".")[2], 1.0)
