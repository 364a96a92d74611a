"""Loading of models whose matrices stay in their files."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.initialization import no_init_weights

from agentkv_runtime.hf.deferred import defer
from agentkv_runtime.hf.weights import FLOATS, Weights

__all__ = ["streamed_model"]


def _names_of_parameters(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter; tied ones have several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _source(weights: Weights, names: list[str]) -> str | None:
    """The name under which a tensor is stored; None if it is not, or if tied names have different values."""
    here = [name for name in names if name in weights.names()]
    if not here or (len(here) > 1 and any(not torch.equal(weights.load(here[0]), weights.load(n)) for n in here[1:])):
        return None
    return here[0]


@torch.no_grad()
def streamed_model(config: PretrainedConfig, weights: Weights) -> PreTrainedModel | None:
    """Makes a float32 causal language model for inference with deferred parameters of two and more dimensions.

    Returns None if `weights` do not match the model's tensors one by one: for checkpoints that transformers converts
    while loading (stacked experts, older names, quantised ones), or that lack tensors.
    """
    if getattr(config, "quantization_config", None) is not None:
        return None
    with no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.tie_weights()
    if any(not isinstance(each, WeightRenaming) for each in get_model_conversion_mapping(model)):
        return None
    buffers = dict(model.named_buffers())
    saved = {name: buffers[name] for name in model.state_dict() if name in buffers}
    if not all(name in weights.names() and weights.load(name).shape == held.shape for name, held in saved.items()):
        return None
    for name, buffer in saved.items():
        buffer.copy_(weights.load(name))
    for parameter, names in _names_of_parameters(model).items():
        name = _source(weights, names)
        if name is None:
            return None
        tensor = weights.load(name)
        if tensor.shape != parameter.shape or tensor.dtype not in FLOATS:
            return None
        if tensor.dim() < 2:
            parameter.copy_(tensor)
            parameter.requires_grad_(False)
            continue
        held = defer(tensor.shape, torch.float32, lambda name=name: weights.load(name))  # type: ignore[misc]
        for path in names:
            owner, _, attribute = path.rpartition(".")
            setattr(model.get_submodule(owner), attribute, held)
    streamed: PreTrainedModel = model.eval()
    return streamed
