"""The rotary positions of a GGUF file, as the `rope_parameters` of transformers.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A factor without a type of scaling means linear
scaling, as in llama.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from agentkv_runtime.errors import GGUFError
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.weights import Floats, numbers_of

__all__ = ["OF_ROPE", "rope_parameters"]

OF_ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors of factors of rotary positions, which are no weights."""

_FACTORS = ("rope.scaling.factor", "rope.scale_linear")
"""Keys of the scaling factor, the older name second; the first that the file has counts."""
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
"""Llama 3's constants: turns within the original context up to which frequencies are slow, from which they are fast,
and positions of that context."""
_THETA = 10000.0
_LEAST = 1e-6  # of factors: positions divided by less are no floats any more


def rope_parameters(keys: Keys, head_dim: int, partial: bool = False) -> dict[str, Any]:
    """Transformers' `rope_parameters` for heads of `head_dim`; with `partial` the file may rotate a part of each.

    Raises UnsupportedModelError for positions that transformers does not compute, GGUFError for invalid numbers.
    """
    rules = {"rope_theta": keys.base("rope.freq_base", _THETA), **_scaling(keys, _turned(keys, head_dim, partial))}
    turned = _turned(keys, head_dim, partial)
    if partial:
        rules["partial_rotary_factor"] = turned / head_dim
    return rules


def _turned(keys: Keys, head_dim: int, partial: bool) -> int:
    turned = keys.whole("rope.dimension_count", head_dim) or head_dim
    if turned != head_dim and not (partial and turned < head_dim and turned % 2 == 0):
        keys.unsupported(f"{turned} of {head_dim} numbers of a head are turned")
    return turned


def _scaling(keys: Keys, turned: int) -> dict[str, Any]:
    kind, factor = keys.value("rope.scaling.type", "linear"), _factor(keys)
    magnitude = keys.number("rope.scaling.attn_factor", 1.0)
    tensors = [name for name in OF_ROPE if keys.has(name)]
    if tensors[:1] == ["rope_freqs.weight"]:
        if (kind not in ("none", "linear")) or (kind == "linear" and factor != 1) or len(tensors) > 1:
            keys.unsupported("rotary positions are scaled in two ways at once, by factors and otherwise")
        _check_plain(keys, magnitude)
        return _llama3(keys, turned)
    if tensors:
        return _longrope(keys, turned, magnitude)
    if kind == "yarn" and factor != 1:
        return _yarn(keys, factor, magnitude)
    if kind not in ("none", "linear", "yarn"):
        keys.unsupported(f"rotary positions are scaled by {kind!r:.40}")
    _check_plain(keys, magnitude)
    return {"rope_type": "default"} if kind != "linear" or factor == 1 else {"rope_type": "linear", "factor": factor}


def _check_plain(keys: Keys, magnitude: float) -> None:
    if magnitude != 1:
        keys.unsupported(f"the length of rotations is scaled (rope.scaling.attn_factor is {magnitude})")
    # Files name it without a scaling, too, and it then means nothing.
    keys.value("rope.scaling.original_context_length")


def _factor(keys: Keys) -> float:
    """The factor that positions are divided by; 1 without scaling. Raises GGUFError for an invalid one."""
    factor = next((value for key in _FACTORS if (value := keys.value(key)) is not None), 1)
    if (
        isinstance(factor, bool)
        or not isinstance(factor, int | float)
        or not (factor == 0 or _LEAST < factor < math.inf)
    ):
        raise GGUFError(
            f"{keys.file.path}: its rotary positions are scaled by {factor!r:.40}, which is no factor. Convert it again"
        )
    return float(factor) or 1.0  # 0 stands for none


def _yarn(keys: Keys, factor: float, magnitude: float) -> dict[str, Any]:
    original = _original(keys, keys.whole("context_length"))
    rules: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    if keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1:
        keys.unsupported("yarn extrapolates by another factor than 1")
    for name in ("beta_fast", "beta_slow"):
        if (beta := keys.number(f"rope.scaling.yarn_{name}", 0.0)) > 0:
            rules[name] = beta
    stated = keys.value("rope.scaling.yarn_attn_factor")
    multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if stated is not None:
        rules["attention_factor"] = keys.number("rope.scaling.yarn_attn_factor") * magnitude
    elif magnitude != 1:
        rules["attention_factor"] = magnitude * _length(factor, 1.0) / _length(factor, multiplier)
    elif multiplier:
        rules |= {"mscale": 1.0, "mscale_all_dim": multiplier}
    return rules


def _original(keys: Keys, default: int | None = None) -> int:
    """Number of positions of the context before scaling. Raises GGUFError for fewer than 2."""
    original = keys.whole("rope.scaling.original_context_length", default)
    if original < 2:
        raise GGUFError(
            f"{keys.file.path}: its rotary positions are scaled from {original} positions on, which are no context. "
            "Convert it again"
        )
    return original


def _length(factor: float, multiplier: float) -> float:
    """Yarn's factor on the length of rotated vectors."""
    return 0.1 * multiplier * math.log(factor) + 1 if factor > 1 else 1.0


def _llama3(keys: Keys, turned: int) -> dict[str, Any]:
    """Rules of Llama 3.1 and later. Files have a divisor per frequency, configs the rule behind the divisors."""
    factors = _factors(keys, "rope_freqs.weight", turned)
    if np.all(factors == 1):
        return {"rope_type": "default"}
    theta, factor = keys.base("rope.freq_base", _THETA), float(factors.max())
    if not np.allclose(_llama3_factors(theta, turned, factor), factors, rtol=1e-4, atol=0):
        keys.unsupported("rotary frequencies are divided by another rule than Llama 3's")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }


def _llama3_factors(theta: float, turned: int, factor: float) -> Floats:
    """Divisor of each frequency: the factor for slow ones, 1 for fast ones, interpolated between."""
    frequencies = theta ** -(np.arange(0, turned, 2) / turned)
    kept = np.clip((_ORIGINAL * frequencies / (2 * math.pi) - _LOW) / (_HIGH - _LOW), 0, 1)
    return np.asarray(1 / ((1 - kept) / factor + kept), np.float32)


def _longrope(keys: Keys, turned: int, magnitude: float) -> dict[str, Any]:
    """Rules of Phi: factors for texts within the original context, and others for longer texts."""
    long, short = (_factors(keys, f"rope_factors_{length}.weight", turned) for length in ("long", "short"))
    original = _original(keys)
    rules = {
        "rope_type": "longrope",
        "long_factor": long.tolist(),
        "short_factor": short.tolist(),
        "original_max_position_embeddings": original,
    }
    ratio = keys.whole("context_length") / original
    usual = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    stated = keys.value("rope.scaling.attn_factor")
    return (
        rules
        if stated is None or math.isclose(magnitude, usual, rel_tol=1e-6)
        else rules | {"attention_factor": magnitude}
    )


def _factors(keys: Keys, name: str, turned: int) -> Floats:
    tensor = keys.file.tensors.get(name)
    if tensor is None or tensor.shape != (turned // 2,):
        shape = None if tensor is None else list(tensor.shape)
        raise GGUFError(f"{keys.file.path}: {name} is {shape}, and must be {[turned // 2]}. Download it again")
    return numbers_of(tensor)
