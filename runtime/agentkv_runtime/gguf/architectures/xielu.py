"""The learned activations of Apertus, whose parameters are keys of the file."""

from __future__ import annotations

import numpy as np

from agentkv_runtime.errors import GGUFError
from agentkv_runtime.gguf.architectures.layout import Sizes
from agentkv_runtime.gguf.block_types import F32
from agentkv_runtime.gguf.file import Tensor
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.weights import Parameter

__all__ = ["activations"]

_SHAPES: dict[str, tuple[int, ...]] = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}


def activations(keys: Keys, sizes: Sizes) -> dict[str, Parameter]:
    """Parameters and buffers of the activations. Raises GGUFError for keys that are not one number per layer."""
    found: dict[str, Parameter] = {}
    for name, shape in _SHAPES.items():
        stated = keys.file.metadata.get(f"xielu.{name}")
        each = stated if isinstance(stated, list) else [stated] * sizes.layers
        if len(each) != sizes.layers or not all(isinstance(value, float) for value in each):
            raise GGUFError(
                f"{keys.file.path}: xielu.{name} is {stated!r:.40}, and must be a number for each of {sizes.layers} "
                "layers. Convert it again"
            )
        for i, value in enumerate(each):
            tensor = Tensor(f"xielu.{name}", F32, (1,), np.array([value], np.float32).view(np.uint8))
            found[f"model.layers.{i}.mlp.act_fn.{name}"] = Parameter((tensor,), axis=-1, shape=shape)
    return found
