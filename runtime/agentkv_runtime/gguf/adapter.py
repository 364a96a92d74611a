"""LoRA adapters in GGUF files, as llama.cpp's `convert_lora_to_gguf.py` writes them. Imports no torch.

`general.type` is "adapter", `adapter.type` "lora"; each changed tensor has `NAME.lora_a` and `NAME.lora_b`, where NAME
is that of the model's tensor. The change is `lora_b @ lora_a * alpha / rank`; without an alpha, or with 0, it is not
scaled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import AdapterError
from agentkv_runtime.folder.printable import printable, some_names
from agentkv_runtime.gguf.architectures import ARCHITECTURES
from agentkv_runtime.gguf.architectures.layout import Layout, Sizes, Source
from agentkv_runtime.gguf.file import GGUFFile, Tensor, open_file
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.weights import numbers_of

__all__ = ["find_pairs"]

Floats = npt.NDArray[np.float32]
Shape = Sequence[int]

_SIDE = re.compile(r"(?P<weight>.+)\.lora_(?P<side>[ab])")
_LAYER = re.compile(r"blk\.(?P<layer>0|[1-9][0-9]{0,5})\.(?P<part>.+)\.weight")
_INSTEAD = "Give the folder that peft wrote, or merge the adapter into its model"


def find_pairs(path: Path, head_dim: int) -> dict[str, tuple[Shape, Shape, Callable[[], tuple[Floats, Floats]]]]:
    """Both matrices of each changed layer, by transformers' name of the layer: their shapes `[rank, inputs]` and
    `[outputs, rank]`, and what reads them, with the scale in the second. `head_dim` is the model's, whose queries and
    keys some files have in another order.

    Raises AdapterError for files that are no adapters, or of kinds that do not run beside a program; GGUFError for
    damaged ones. Reading raises UnsupportedModelError for blocks that cannot be dequantised.
    """
    file = open_file(path)
    alpha = _checked_alpha(file)
    layout = _layout(file)

    def read(a: Tensor, b: Tensor, source: Source) -> tuple[Floats, Floats]:
        numbers = _ordered(_numbers(file, b), source, head_dim)
        return _numbers(file, a), np.ascontiguousarray(numbers * _scale(alpha, numbers))

    return {module: (a.shape, b.shape, partial(read, a, b, source)) for module, source, a, b in _layers(file, layout)}


def _checked_alpha(file: GGUFFile) -> float:
    """The alpha of an adapter of plain LoRA. Raises AdapterError."""
    kinds = {"general.type": "adapter", "adapter.type": "lora"}
    for key, wanted in kinds.items():
        if (given := file.metadata.get(key)) != wanted:
            raise AdapterError(
                f"{file.path}: is no LoRA adapter: {key} is {_shown(given)}, and must be {wanted!r}. Give the file "
                "that convert_lora_to_gguf.py wrote"
            )
    if "adapter.alora.invocation_tokens" in file.metadata:
        raise AdapterError(f"{file.path}: is an activated LoRA, which is not read here. {_INSTEAD}")
    alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not (math.isfinite(alpha) and alpha >= 0):
        raise AdapterError(f"{file.path}: adapter.lora.alpha is {_shown(alpha)}, and must be a number from 0")
    return float(alpha)


def _layout(file: GGUFFile) -> Layout:
    """Names of the model's tensors. Raises AdapterError for an unknown architecture."""
    keys = Keys(file)
    if not isinstance(keys.architecture, str) or keys.architecture not in ARCHITECTURES:
        raise AdapterError(
            f"{file.path}: general.architecture is {_shown(keys.architecture)}, whose adapters are not read. {_INSTEAD}"
        )
    return ARCHITECTURES[keys.architecture](keys).layout


def _layers(file: GGUFFile, layout: Layout) -> list[tuple[str, Source, Tensor, Tensor]]:
    """Layer, source and both matrices of each pair. Raises AdapterError."""
    sources = _sources(layout)
    sides: dict[str, dict[str, Tensor]] = {}
    others = []
    for name, tensor in file.tensors.items():
        side = _SIDE.fullmatch(name)
        place = _LAYER.fullmatch(side["weight"]) if side else None
        if side is None or place is None or place["part"] not in sources:
            others.append(name)
        else:
            sides.setdefault(side["weight"], {})[side["side"]] = tensor
    if others:
        raise AdapterError(
            f"{file.path}: changes {some_names(others)}; beside a program run only pairs of matrices of linear layers, "
            f"not of embeddings, heads, norms and experts. {_INSTEAD}"
        )
    incomplete = [weight for weight, found in sides.items() if len(found) != 2]
    if incomplete or not sides:
        what = f"{some_names(incomplete)} has one of its two matrices" if incomplete else "holds no weights"
        raise AdapterError(f"{file.path}: {what}. Download the whole adapter")
    found = []
    for weight, pair in sides.items():
        place = _LAYER.fullmatch(weight)
        assert place is not None  # as above
        name, source = sources[place["part"]]
        found.append((f"{layout.prefix}.{place['layer']}.{name}", source, *_matrices(file, weight, pair)))
    return found


def _sources(layout: Layout) -> dict[str, tuple[str, Source]]:
    """Layers that are one tensor of the file each, by its name: transformers' name, and the source."""
    named = {name: Source((each,)) if isinstance(each, str) else each for name, each in layout.layer.items()}
    return {source.parts[0]: (name, source) for name, source in named.items() if len(source.parts) == 1}


def _matrices(file: GGUFFile, weight: str, pair: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    a, b = pair["a"], pair["b"]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise AdapterError(
            f"{file.path}: lora_a and lora_b of {printable(weight)} are {list(a.shape)} and {list(b.shape)}, which are "
            "no [rank, inputs] and [outputs, rank]. Download the adapter again"
        )
    return a, b


def _numbers(file: GGUFFile, tensor: Tensor) -> Floats:
    numbers = numbers_of(tensor)
    if not np.isfinite(numbers).all():
        raise AdapterError(f"{file.path}: {printable(tensor.name)} holds infinities or NaN. Download the adapter again")
    return np.ascontiguousarray(numbers)


def _ordered(b: Floats, source: Source, head_dim: int) -> Floats:
    """Rows in transformers' order; of another number of rows than heads have, which fits no model, as they are."""
    if source.order is None or head_dim % 2 or len(b) % head_dim:
        return b
    heads = len(b) // head_dim
    sizes = Sizes(0, 0, 0, heads=heads, kv_heads=heads, head_dim=head_dim, vocabulary=0)
    return b[source.order(sizes)]


def _scale(alpha: float, b: Floats) -> np.float32:
    return np.float32(alpha / b.shape[1] if alpha else 1.0)


def _shown(value: Any) -> str:
    return printable(f"{value!r:.40}")
