"""Fixed costs of errors in a layer's weight, for models without a measured importance. Imports no torch."""

from __future__ import annotations

from agentkv_runtime.export.made import EMBEDDING_TITLE

__all__ = ["usual_cost"]

# What an error's square costs beside that in other layers: what `Importance` finds in the middle one of a published
# model's layers (SmolLM2-135M).
_OF_EACH = {"v_proj": 25.0, "k_proj": 6.0, "qkv_proj": 6.0}  # few rows, which all queries of a group read
_OF_ALL_ROWS = {"lm_head": 300_000.0, EMBEDDING_TITLE: 25_000.0}  # a token has one row, so of many each counts little


def usual_cost(layer: str, outputs: int) -> float:
    """Relative cost of an error's square in the weight of a layer with `outputs` rows.

    For a tied weight give the head's name.
    """
    name = layer.rpartition(".")[2]
    return _OF_ALL_ROWS[name] / outputs if name in _OF_ALL_ROWS else _OF_EACH.get(name, 1.0)
