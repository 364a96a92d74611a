"""Bounds of a model's positions, up to which keys do not depend on later tokens."""

from __future__ import annotations

from typing import Any

from agentkv_runtime.errors import ExportError

__all__ = ["long_factors", "position_limit", "rope_parameters", "trained_positions"]

_STRETCHED = ("yarn", "dynamic")
"""Types of rope that extend a model beyond its training without further training."""

_LENGTHS = ("max_position_embeddings", "max_seq_len", "max_target_positions", "index_topk", "keep_window_size")


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Rope parameters of a text config: one dict, one per layer type if these differ, or none."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        return []
    per_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    return per_layer_type or [parameters]


def _original(config: Any, parameters: dict[str, Any]) -> int | None:
    original = parameters.get("original_max_position_embeddings")
    return original or getattr(config, "original_max_position_embeddings", None)


def long_factors(config: Any, max_context: int | None) -> bool:
    """Whether a history of `max_context` rows needs the long factors of a long-rope model."""
    return max_context is not None and any(
        parameters.get("rope_type") == "longrope" and max_context > (_original(config, parameters) or max_context)
        for parameters in rope_parameters(config)
    )


def position_limit(config: Any, max_context: int | None = None, reserved: int = 0) -> int | None:
    """Number of positions that a model of this text config computes; None if the config names no length.

    The config's length is that of the position table, of the training, or up to which sparse attention picks all
    tokens, less the `reserved` rows of the table. Long-rope models would rotate all keys anew once the history passes
    their original context, so they end there; with a `max_context` above it they use their long factors from the first
    token on, and end at `max_context`. Otherwise `max_context` only lowers the limit. Raises ExportError for a
    `max_context` below 1.
    """
    if max_context is not None and max_context < 1:
        raise ExportError(f"max_context is {max_context}, but a history has at least 1 position")
    limits = [
        length - reserved
        for name in _LENGTHS
        if isinstance(length := getattr(config, name, None), int) and length > reserved
    ]
    if max_context is not None:
        limits.append(max_context)
    if not long_factors(config, max_context):
        for parameters in rope_parameters(config):
            if parameters.get("rope_type") == "longrope" and (original := _original(config, parameters)):
                limits.append(original)
    return min(limits, default=None)


def trained_positions(config: Any) -> int | None:
    """Positions that a model was trained on, if its rope extends beyond them and its config names both; None otherwise.

    YaRN (Peng et al. 2023) and dynamic NTK scaling extend it.
    """
    lengths = [
        original
        for parameters in rope_parameters(config)
        if parameters.get("rope_type") in _STRETCHED and (original := _original(config, parameters))
    ]
    return min(lengths, default=None)
