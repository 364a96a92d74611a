"""Weight quantisation before export: 8-bit dynamic activations over 8- or 4-bit weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from agentkv_runtime.export.draft_head import DraftHead
from agentkv_runtime.export.quantization import QuantizationError, embedding_scale
from agentkv_runtime.manifest import Quantization

__all__ = ["GROUP_SIZE", "quantize"]

GROUP_SIZE = 32


class _TableEmbedding(nn.Module):
    """Token embedding with its table at 16 bits."""

    def __init__(self, table: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.table = nn.Buffer(table.detach().to(torch.float16))
        self.scale = scale

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens `[1, T]` -> `[1, T, H]` float32."""
        rows = functional.embedding(tokens, self.table).float()
        return rows if self.scale == 1.0 else rows * self.scale


def _shrink_embedding(model: PreTrainedModel | DraftHead) -> None:
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise QuantizationError(f"cannot store a token embedding of type {type(embedding).__name__} at 16 bits")
    model.set_input_embeddings(_TableEmbedding(embedding.weight, embedding_scale(embedding)))


def _check_groups(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.in_features % GROUP_SIZE:
            raise QuantizationError(
                f"8da4w groups {GROUP_SIZE} weights, but {name} has {module.in_features} input features:"
                " use 8da8w or none"
            )


def untie(model: PreTrainedModel | DraftHead) -> None:
    """Gives the LM head a parameter of its own, so that it can be quantised apart from the embedding."""
    head = model.get_output_embeddings()
    if isinstance(head, nn.Linear):
        head.weight = nn.Parameter(head.weight.detach(), requires_grad=False)


@torch.no_grad()
def quantize(model: PreTrainedModel | DraftHead, quant: Quantization) -> None:
    """Quantises every linear layer in place and stores the embedding at 16 bits; "none" changes nothing.

    Raises QuantizationError naming a layer that does not divide into groups.
    """
    untie(model)
    if quant == "none":
        return
    if quant == "8da4w":
        _check_groups(model)

    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.utils import unwrap_tensor_subclass

    _shrink_embedding(model)
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4 if quant == "8da4w" else torch.int8,  # type: ignore[attr-defined]
        weight_granularity=PerGroup(GROUP_SIZE) if quant == "8da4w" else PerAxis(0),
    )
    quantize_(model, config)
    # Without this the weights would be exported as float32.
    unwrap_tensor_subclass(model)
