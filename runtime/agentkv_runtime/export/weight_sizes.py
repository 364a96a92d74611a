"""Sizes of a model's weights, taken before its layers are replaced."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import nn

from agentkv_runtime.export.experts import ExpertLinear
from agentkv_runtime.export.quantization import EMBEDDING, Recipe
from agentkv_runtime.folder.manifest import DType
from agentkv_runtime.hf.dtypes import TORCH_DTYPES
from agentkv_runtime.hf.own_experts import expert_parameters, is_experts

__all__ = ["note_sizes"]


def note_sizes(model: Any, recipe: Recipe, dtype: DType) -> None:
    """Fills the recipe's `counts`, and its `bytes` as without quantisation, in `dtype`."""
    for name, shape in _shapes(model):
        recipe.counts[name] = math.prod(shape)
        recipe.bytes[name] = recipe.counts[name] * TORCH_DTYPES[dtype].itemsize


def _shapes(model: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBEDDING, tuple(model.get_input_embeddings().weight.shape)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear | ExpertLinear):
            yield name, tuple(module.weight.shape)
        elif is_experts(module):
            weights = {parameter: getattr(module, parameter) for parameter in expert_parameters(module)}
            for parameter, weight in weights.items():
                if not isinstance(weight, nn.Module):
                    yield f"{name}.{parameter}", tuple(weight.shape)
