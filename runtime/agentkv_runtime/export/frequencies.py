"""Frequencies of rotary positions, computed in float64 and rounded once: equal on every machine, with torch or without.

Su et al. 2021 (rotary positions), Peng et al. 2023 (YaRN), Ding et al. 2024 (LongRoPE), and the rule of Llama 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Frequencies", "rotary_frequencies"]

_Doubles: TypeAlias = npt.NDArray[np.float64]
_Parameters: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Frequencies:
    """Frequencies that positions are multiplied by, float32 `[F]`, and the factor on cosines and sines."""

    inv_freq: npt.NDArray[np.float32]
    scaling: float


@dataclass(frozen=True)
class _Shape:
    """Rotated dimensions and positions of a model, and whether long-rope uses its long factors."""

    dim: int
    max_positions: int
    long: bool

    def plain(self, parameters: _Parameters) -> _Doubles:
        """Frequencies without scaling."""
        exponents = np.arange(0, self.dim, 2, dtype=np.float64) / self.dim
        return float(parameters["rope_theta"]) ** -exponents


def rotary_frequencies(
    parameters: _Parameters, head_dim: int, max_positions: int, *, long: bool = False
) -> Frequencies | None:
    """Frequencies of a model whose config has these `rope_parameters`; None for an unknown type.

    With `long`, long-rope models use their long factors. Raises KeyError for a missing parameter, ValueError for
    invalid numbers.
    """
    rule = _RULES.get(str(parameters.get("rope_type", "default")))
    if rule is None:
        return None
    dim = int(head_dim * (parameters.get("partial_rotary_factor") or 1.0))
    try:
        with np.errstate(all="ignore"):
            numbers, scaling = rule(parameters, _Shape(dim, max_positions, long))
            found = Frequencies(numbers.astype(np.float32), scaling)
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"rope_parameters give no frequencies: {error}") from error
    if not (np.isfinite(found.inv_freq).all() and math.isfinite(scaling)):
        raise ValueError("rope_parameters give frequencies that are not finite")
    return found


def _default(parameters: _Parameters, shape: _Shape) -> tuple[_Doubles, float]:
    return shape.plain(parameters), 1.0


def _linear(parameters: _Parameters, shape: _Shape) -> tuple[_Doubles, float]:
    return shape.plain(parameters) / parameters["factor"], 1.0


def _llama3(parameters: _Parameters, shape: _Shape) -> tuple[_Doubles, float]:
    """Divides slow frequencies by the factor, keeps fast ones, and interpolates those between."""
    plain = shape.plain(parameters)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * plain / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - share) * plain / parameters["factor"] + share * plain, 1.0


def _yarn(parameters: _Parameters, shape: _Shape) -> tuple[_Doubles, float]:
    plain, theta = shape.plain(parameters), float(parameters["rope_theta"])
    original = parameters.get("original_max_position_embeddings") or shape.max_positions
    factor = parameters.get("factor") or shape.max_positions / original

    def dimension(turns: float) -> float:
        """The dimension that makes `turns` rotations over the original context."""
        return shape.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(parameters.get("beta_fast") or 32), dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, shape.dim - 1)
    span = high - low if high != low else 0.001
    share = np.clip((np.arange(shape.dim // 2, dtype=np.float64) - low) / span, 0.0, 1.0)
    return plain / factor * share + plain * (1 - share), _yarn_scaling(parameters, factor)


def _yarn_scaling(parameters: _Parameters, factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if (stated := parameters.get("attention_factor")) is not None:
        return float(stated)
    one, other = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return magnitude(one) / magnitude(other) if one and other else magnitude(1.0)


def _longrope(parameters: _Parameters, shape: _Shape) -> tuple[_Doubles, float]:
    original = parameters.get("original_max_position_embeddings") or shape.max_positions
    factors = np.array(parameters["long_factor" if shape.long else "short_factor"], dtype=np.float64)
    scaling = parameters.get("attention_factor")
    if scaling is None:
        factor = parameters.get("factor") or shape.max_positions / original
        scaling = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return shape.plain(parameters) / factors, float(scaling)


_RULES: dict[str, Callable[[_Parameters, _Shape], tuple[_Doubles, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""Rules by transformers' `rope_type`."""
