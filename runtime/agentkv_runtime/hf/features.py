"""Features for draft heads: a model's residual stream after some of the decoder layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedModel

from agentkv_runtime.errors import UnsupportedModelError

__all__ = ["Features", "ResidualStream", "feature_layers"]


Features: TypeAlias = Literal["none", "eagle", "mtp"]
"""What reads a model's features: no draft head, an EAGLE-3 head, or a multi-token prediction layer."""


def feature_layers(n_layers: int, features: Features) -> tuple[int, ...]:
    """Numbers of decoder layers after which draft heads read the residual stream.

    EAGLE-3 reads low, middle and high ones, multi-token prediction the last.
    """
    if features == "none":
        return ()
    if features == "mtp":
        return (n_layers,)
    if n_layers >= 8:
        return 2, n_layers // 2, n_layers - 3
    return 1, (n_layers + 1) // 2, n_layers


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{type(model).__name__} has no list of {count} decoder layers to take features from")


class ResidualStream:
    """Records the outputs of chosen decoder layers of a model, before any final norm."""

    def __init__(self, model: PreTrainedModel, after: Sequence[int]) -> None:
        """`after` are numbers of decoder layers. Raises UnsupportedModelError for a model that lacks them."""
        layers = _decoder_layers(model)
        for count in after:
            if not 1 <= count <= len(layers):
                raise UnsupportedModelError(
                    f"features after layer {count} of a model that has layers 1 to {len(layers)}"
                )
        self._after = tuple(after)
        self._hidden: dict[int, torch.Tensor] = {}
        for count in set(after):
            layers[count - 1].register_forward_hook(self._keeper(count))

    def _keeper(self, count: int) -> Any:
        def keep(_module: nn.Module, _args: object, out: Any) -> None:
            self._hidden[count] = out[0] if isinstance(out, tuple) else out

        return keep

    def take(self) -> torch.Tensor:
        """Features of the last forward, float32 `[T, F]`: the recorded outputs, concatenated."""
        streams = [self._hidden[count] for count in self._after]
        self._hidden.clear()
        return torch.cat([hidden.view(-1, hidden.shape[-1]) for hidden in streams], dim=-1).float()
