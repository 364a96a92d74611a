"""Weight quantisation before export: 8-bit dynamic activations over 8- or 4-bit weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchao.quantization import IntxUnpackedToInt8Tensor
from transformers import PreTrainedModel

from agentkv_runtime.export.blocks.making import planned_blocks
from agentkv_runtime.export.choices import OWN_BLOCKS
from agentkv_runtime.export.cpu.block_layers import BlockEmbedding, BlockExperts, BlockLinear, check_blocks
from agentkv_runtime.export.cpu.codes import GROUP_SIZE, Codes
from agentkv_runtime.export.cpu.embeddings import CodeEmbedding, PackedEmbedding, TableEmbedding
from agentkv_runtime.export.cpu.int8_experts import int8_expert_linear
from agentkv_runtime.export.cpu.int8_linear import int8_linear, int8_weight
from agentkv_runtime.export.cpu.sensitive import Layers, layers_at_8_bits
from agentkv_runtime.export.draft_head import DraftHead
from agentkv_runtime.export.experts import ExpertLinear
from agentkv_runtime.export.linears import is_plain_linear
from agentkv_runtime.export.quantization import EMBEDDING, QuantizationError, Recipe, embedding_scale
from agentkv_runtime.hf.blocks import blocks_of
from agentkv_runtime.hf.deferred import defer, present, stored

__all__ = ["quantize"]


class QuantizedLinear(nn.Module):
    """Linear layer over a weight that is quantised when its codes or scales are first used."""

    def __init__(self, linear: nn.Linear, name: str, bits: int, recipe: Recipe) -> None:
        super().__init__()
        self.bits = bits
        codes = Codes(linear.weight, bits, recipe, name)
        grouped = (linear.out_features, linear.in_features // codes.group)
        self.codes = defer(linear.weight.shape, torch.int8, lambda: codes.take("codes"))
        self.scales = defer(grouped, torch.float32, lambda: codes.take("scales"))
        self.zeros = defer(grouped, torch.int8, lambda: torch.zeros(grouped, dtype=torch.int8))
        self.bias = linear.bias

    @property
    def weight(self) -> IntxUnpackedToInt8Tensor:
        """The weight as torchao's tensor, for models that read it."""
        return int8_weight(self.codes, self.scales, self.zeros, self.bits)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., I]` -> `[..., O]`."""
        out: torch.Tensor = int8_linear(x, self.codes, self.scales, self.zeros, self.bias, self.bits)
        return out


class QuantizedExperts(nn.Module):
    """Linear layer of all experts over weights that are quantised on first use."""

    def __init__(self, experts: ExpertLinear, name: str, bits: int, recipe: Recipe) -> None:
        super().__init__()
        self.bits = bits
        codes = Codes(experts.weight, bits, recipe, name)
        grouped = (*experts.weight.shape[:2], experts.in_features // codes.group)
        self.codes = defer(experts.weight.shape, torch.int8, lambda: codes.take("codes"))
        self.scales = defer(grouped, torch.float32, lambda: codes.take("scales"))
        self.bias = experts.bias

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """x `[T, I]` or `[T, K, I]`, chosen `[T, K]` int64 -> `[T, K, O]`."""
        out: torch.Tensor = int8_expert_linear(x, chosen, self.codes, self.scales, self.bias, self.bits)
        return out


def _embedding(model: PreTrainedModel | DraftHead) -> nn.Embedding:
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise QuantizationError(f"cannot store a token embedding of type {type(embedding).__name__} in fewer bits")
    return embedding


def _shrink_embedding(model: PreTrainedModel | DraftHead, recipe: Recipe) -> None:
    embedding = _embedding(model)
    with present(embedding):
        scale = embedding_scale(embedding)
    table = embedding.weight
    if recipe.embedding == 16:
        model.set_input_embeddings(TableEmbedding(table, scale))
        recipe.bytes[EMBEDDING] = table.numel() * 2
        return
    kind = PackedEmbedding if recipe.embedding == 4 else CodeEmbedding
    model.set_input_embeddings(kind(Codes(table, recipe.embedding, recipe, EMBEDDING), table.shape, scale))


def _check(linears: Layers, eight: set[str], recipe: Recipe, width: int) -> None:
    if recipe.embedding == 4 and width % (2 * GROUP_SIZE):
        raise QuantizationError(
            f"an embedding of 4 bits takes rows of a multiple of {2 * GROUP_SIZE}, and these have {width}: keep it at 8"
        )
    for name, module in linears.items():
        if name not in eight and module.in_features % GROUP_SIZE:
            raise QuantizationError(
                f"8da4w groups {GROUP_SIZE} weights, but {name} has {module.in_features} input features:"
                " use 8da8w or none"
            )


def untie(model: PreTrainedModel | DraftHead) -> None:
    """Gives the LM head its own parameter, so that it can be quantised independently of the embedding."""
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear):
        tied = head.weight
        head.weight = defer(tied.shape, tied.dtype, lambda: stored(tied))


def _run_blocks(model: PreTrainedModel | DraftHead, linears: Layers, recipe: Recipe) -> None:
    """Replaces the model's layers by ones that run blocks: the file's own, or those that the recipe makes."""
    embedding = _embedding(model)
    layers_of_model = {EMBEDDING: embedding, **linears}
    find = blocks_of if recipe.quant == "file" else planned_blocks(model, layers_of_model, recipe).get
    table = check_blocks(find(embedding.weight), embedding.weight, EMBEDDING, recipe)
    layers: dict[str, BlockLinear | BlockExperts] = {}
    for name, layer in linears.items():
        blocks = check_blocks(find(layer.weight), layer.weight, name, recipe)
        if blocks is table:  # the program has a tied head once
            recipe.counts.pop(name, None)
            recipe.bytes.pop(name)
        layers[name] = BlockLinear(layer, blocks) if isinstance(layer, nn.Linear) else BlockExperts(layer, blocks)
    with present(embedding):
        scale = embedding_scale(embedding)
    model.set_input_embeddings(BlockEmbedding(embedding, table, scale))
    for name, block_layer in layers.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, block_layer)


@torch.no_grad()
def quantize(model: PreTrainedModel | DraftHead, recipe: Recipe) -> None:
    """Quantises every linear layer, also of experts, and the embedding in place; "none" changes nothing.

    Raises QuantizationError naming a layer that does not divide into groups, or that has no blocks to run.
    """
    modules = model.named_modules(remove_duplicate=False)
    linears: Layers = {
        name: module for name, module in modules if isinstance(module, ExpertLinear) or is_plain_linear(module)
    }
    if recipe.quant in ("file", *OWN_BLOCKS):
        _run_blocks(model, linears, recipe)
        return
    untie(model)
    if recipe.quant == "none":
        return
    eight = layers_at_8_bits(linears, recipe)
    _check(linears, eight, recipe, _embedding(model).embedding_dim)
    _shrink_embedding(model, recipe)
    for name, layer in linears.items():
        owner, _, attribute = name.rpartition(".")
        kind: Any = QuantizedLinear if isinstance(layer, nn.Linear) else QuantizedExperts
        setattr(model.get_submodule(owner), attribute, kind(layer, name, 8 if name in eight else 4, recipe))
