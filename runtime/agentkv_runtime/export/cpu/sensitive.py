"""Choice of the linear layers that keep 8 bits when others get 4."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import nn

from agentkv_runtime.export.cpu.codes import GROUP_SIZE
from agentkv_runtime.export.cpu.scales import quantized_weight
from agentkv_runtime.export.experts import ExpertLinear
from agentkv_runtime.export.quantization import AUTO, QuantizationError, Recipe
from agentkv_runtime.hf.deferred import stored

__all__ = ["Layers", "layers_at_8_bits"]

Layers: TypeAlias = "dict[str, nn.Linear | ExpertLinear]"
"""Linear layers of a model by name."""

_SHARE = 1 / 16  # of all weights, which makes the program a twentieth larger
_ROWS = 256  # of a weight, by which its error is judged


def _error(linear: nn.Linear | ExpertLinear, recipe: Recipe) -> float:
    """Relative error of a weight at 4 bits, estimated from evenly spaced rows."""
    weight = stored(linear.weight).flatten(0, -2)
    rows = weight[:: max(1, weight.shape[0] // _ROWS)]
    return quantized_weight(rows, 4, GROUP_SIZE, recipe.scales).error


def _worst(linears: Layers, recipe: Recipe) -> set[str]:
    """Names of the layers with the largest errors at 4 bits for their size, up to a sixteenth of all weights.

    Errors are much alike, and small matrices matter as much as large ones: 8 bits for nano's `v_proj` took 29% of the
    divergence away, and those for `down_proj`, of five times the size, 4%.
    """
    sizes = {name: linear.weight.numel() for name, linear in linears.items()}
    left = _SHARE * sum(sizes.values())
    errors = {name: _error(each, recipe) for name, each in linears.items() if each.in_features % GROUP_SIZE == 0}
    worst = set(linears) - set(errors)  # 4 bits do not fit those
    for name in sorted(errors, key=lambda each: -errors[each] / sizes[each]):
        if sizes[name] <= left:
            left -= sizes[name]
            worst.add(name)
    return worst


def layers_at_8_bits(linears: Layers, recipe: Recipe) -> set[str]:
    """Names of the linear layers that the recipe keeps at 8 bits.

    Raises QuantizationError for a pattern that matches no layer.
    """
    if recipe.quant == "8da8w":
        return set(linears)
    eight: set[str] = _worst(linears, recipe) if AUTO in recipe.int8 else set()
    for pattern in recipe.int8:
        named = {name for name in linears if fnmatchcase(name, pattern)}
        if not named and pattern != AUTO:
            raise QuantizationError(
                f"no linear layer is called {pattern!r}. Layers are called like {', '.join(list(linears)[-3:])}"
            )
        eight |= named
    return eight
