"""Weight quantisation before export: 8-bit dynamic activations over 8- or 4-bit weights."""

from __future__ import annotations

from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn import functional
from torchao.quantization import IntxUnpackedToInt8Tensor
from transformers import PreTrainedModel

from agentkv_runtime.export.cpu.int8_linear import int8_linear, int8_weight
from agentkv_runtime.export.cpu.scales import Quantized, quantized_weight
from agentkv_runtime.export.draft_head import DraftHead
from agentkv_runtime.export.quantization import QuantizationError, Recipe, embedding_scale
from agentkv_runtime.hf.deferred import defer, present, stored

__all__ = ["GROUP_SIZE", "quantize"]

GROUP_SIZE = 32


class _Codes:
    """What a weight was quantised to: made when the first part of it is asked for, kept until the last was."""

    def __init__(self, weight: torch.Tensor, bits: int, group: int, recipe: Recipe, name: str) -> None:
        self._weight, self._bits, self._group, self._recipe, self._name = weight, bits, group, recipe, name
        self._made: Quantized | None = None
        self._left: set[str] = set()

    def take(self, part: str) -> torch.Tensor:
        """The `codes` or the `scales`."""
        if self._made is None or part not in self._left:
            self._made = quantized_weight(stored(self._weight), self._bits, self._group, self._recipe.scales)
            self._left = {"codes", "scales"}
            self._recipe.errors[self._name] = self._made.error
        tensor: torch.Tensor = getattr(self._made, part)
        self._left.remove(part)
        if not self._left:
            self._made = None
        return tensor


class _TableEmbedding(nn.Module):
    """Token embedding with its table at 16 bits."""

    def __init__(self, table: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.table = defer(table.shape, torch.float16, lambda: stored(table))
        self.scale = scale

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens `[1, T]` -> `[1, T, H]` float32."""
        rows = functional.embedding(tokens, self.table).float()
        return rows if self.scale == 1.0 else rows * self.scale


class _CodeEmbedding(nn.Module):
    """Token embedding at 8 bits, with a scale per token: two lookups, for which the runtime has kernels."""

    def __init__(self, codes: _Codes, shape: torch.Size, scale: float) -> None:
        super().__init__()
        self.codes = defer(shape, torch.int8, lambda: codes.take("codes"))
        self.scales = defer((shape[0], 1), torch.float32, lambda: codes.take("scales") * scale)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens `[1, T]` -> `[1, T, H]` float32."""
        return functional.embedding(tokens, self.codes).float() * functional.embedding(tokens, self.scales)


class QuantizedLinear(nn.Module):
    """Linear layer over a weight that is quantised when somebody asks for its codes or its scales."""

    def __init__(self, linear: nn.Linear, name: str, recipe: Recipe) -> None:
        super().__init__()
        self.bits = _bits(name, recipe)
        group = GROUP_SIZE if self.bits == 4 else linear.in_features
        grouped = (linear.out_features, linear.in_features // group)
        codes = _Codes(linear.weight, self.bits, group, recipe, name)
        self.codes = defer(linear.weight.shape, torch.int8, lambda: codes.take("codes"))
        self.scales = defer(grouped, torch.float32, lambda: codes.take("scales"))
        self.zeros = defer(grouped, torch.int8, lambda: torch.zeros(grouped, dtype=torch.int8))
        self.bias = linear.bias

    @property
    def weight(self) -> IntxUnpackedToInt8Tensor:
        """For models that ask a layer for it."""
        return int8_weight(self.codes, self.scales, self.zeros, self.bits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., I]` -> `[..., O]`."""
        out: torch.Tensor = int8_linear(x, self.codes, self.scales, self.zeros, self.bias, self.bits)
        return out


def _shrink_embedding(model: PreTrainedModel | DraftHead, recipe: Recipe) -> None:
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise QuantizationError(f"cannot store a token embedding of type {type(embedding).__name__} in fewer bits")
    with present(embedding):
        scale = embedding_scale(embedding)
    table = embedding.weight
    if recipe.embedding == 16:
        model.set_input_embeddings(_TableEmbedding(table, scale))
    else:
        codes = _Codes(table, 8, table.shape[1], recipe, "the embedding")
        model.set_input_embeddings(_CodeEmbedding(codes, table.shape, scale))


def _bits(name: str, recipe: Recipe) -> int:
    if recipe.quant == "8da8w" or any(fnmatchcase(name, pattern) for pattern in recipe.int8):
        return 8
    return 4


def _check(model: nn.Module, recipe: Recipe) -> None:
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for pattern in recipe.int8:
        if not any(fnmatchcase(name, pattern) for name in linears):
            raise QuantizationError(
                f"no linear layer is called {pattern!r}. Layers are called like {', '.join(list(linears)[-3:])}"
            )
    for name, module in linears.items():
        if _bits(name, recipe) == 4 and module.in_features % GROUP_SIZE:
            raise QuantizationError(
                f"8da4w groups {GROUP_SIZE} weights, but {name} has {module.in_features} input features:"
                " use 8da8w or none"
            )


def untie(model: PreTrainedModel | DraftHead) -> None:
    """Gives the LM head a parameter of its own, so that it can be quantised apart from the embedding."""
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear):
        tied = head.weight
        head.weight = defer(tied.shape, tied.dtype, lambda: stored(tied))


@torch.no_grad()
def quantize(model: PreTrainedModel | DraftHead, recipe: Recipe) -> None:
    """Quantises every linear layer in place and stores the embedding in 16 or 8; "none" changes nothing.

    Raises QuantizationError naming a layer that does not divide into groups.
    """
    untie(model)
    if recipe.quant == "none":
        return
    _check(model, recipe)
    _shrink_embedding(model, recipe)
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, QuantizedLinear(child, f"{path}.{name}".lstrip("."), recipe))
