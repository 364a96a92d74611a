"""Conversion of a GGUF file's weights for MLX: to affine codes of the same values, to 8 bits, or to floats."""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType

from agentkv_runtime.export.mlx.affine import AffineWeight, affine_error, affine_quantize
from agentkv_runtime.export.mlx.file_blocks import FLOATS, GROUP, affine_blocks, is_affine
from agentkv_runtime.export.quantization import QuantizationError, Recipe
from agentkv_runtime.hf.blocks import blocks_of
from agentkv_runtime.hf.dtypes import TORCH_DTYPES

__all__ = ["file_weight"]

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def file_weight(weight: torch.Tensor, name: str, recipe: Recipe, dtype: torch.dtype) -> AffineWeight | None:
    """The affine weight of a layer's float32 weight `[..., I]`; None for one that stays floats.

    Records in the recipe the weight's type in the file and, if values changed, its new type. Raises QuantizationError
    for rows that no group divides, and for scales that are not finite in `dtype`.
    """
    made = _affine(weight, name, dtype)
    became = _NAMES[dtype] if made is None else f"affine{made.bits}"
    recipe.errors[name] = _rounding_error(weight, dtype) if made is None else affine_error(made, weight)
    recipe.kinds[name] = _kind(weight, became, changed=recipe.errors[name] > 0)
    return made


def _affine(weight: torch.Tensor, name: str, dtype: torch.dtype) -> AffineWeight | None:
    blocks = blocks_of(weight)
    if blocks is not None and blocks.type in FLOATS:
        return None
    if blocks is None or not is_affine(blocks):
        if weight.shape[-1] % GROUP:
            raise QuantizationError(
                f"{name} becomes affine8, which groups {GROUP} weights, but its rows have {weight.shape[-1]}: use none"
            )
        return affine_quantize(weight, 8, GROUP, dtype)
    made = affine_blocks(blocks, weight.shape[:-1], dtype)
    if not (made.scales.isfinite().all() and made.biases.isfinite().all()):
        raise QuantizationError(
            f"{name} has a scale that is no number, or is too large for {_NAMES[dtype]}: use none, or dtype fp32"
        )
    return made


def _rounding_error(weight: torch.Tensor, dtype: torch.dtype) -> float:
    norm = float(weight.norm())
    return float((weight.to(dtype).float() - weight).norm()) / norm if norm else 0.0


def _kind(weight: torch.Tensor, became: str, changed: bool) -> str:
    blocks = blocks_of(weight)
    if blocks is None:
        return became
    own = GGMLQuantizationType(blocks.type).name.lower()
    return f"{own} as {became}" if changed else own
