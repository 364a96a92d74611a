"""Cost of errors in each weight, measured on a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from agentkv_runtime.export.experts import ExpertLinear
from agentkv_runtime.export.linears import is_plain_linear
from agentkv_runtime.export.quantization import EMBEDDING, QuantizationError
from agentkv_runtime.folder.small_files import read_text
from agentkv_runtime.notes import note
from agentkv_runtime.quality import default_text
from agentkv_runtime.text.tokenizer import Tokenizer

__all__ = ["Importance", "calibration_text", "calibration_windows", "measure_importance", "windows_of"]

_SKIPPED = 60_000  # characters at the text's beginning, which the measurement of perplexity reads
_LENGTH = 256  # tokens of a window
_TOGETHER = 2  # windows whose logits and activations are in memory at once


@dataclass
class Importance:
    """Importance of the inputs and outputs of linear layers (those of experts too) and of the token embedding, by name.

    An error `E` of a weight `[O, I]` raises the loss by about half of `outputs @ E**2 @ inputs`, one of a weight
    `[E, O, I]` by the sum of that over experts: the diagonals of the factors of the Fisher information, as in
    https://arxiv.org/abs/1503.05671.
    """

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """Mean square of each input, float32 `[I]`; for experts over the rows that are routed to one."""
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """Mean square of the loss's gradient at each output, float32 `[O]`; for experts over all of them, with 0 for those
    that a token did not choose."""

    def usual(self) -> float:
        """Median over layers of the product of both, used for layers that were not measured; 1 if none was."""
        products = [float(self.outputs[name].mean() * inputs.mean()) for name, inputs in self.inputs.items()]
        return median(products) if products else 1.0


def calibration_text() -> str:
    """Python's help topics: English prose, tables and source, part of every installation."""
    return default_text()[_SKIPPED:]


def calibration_windows(tokenizer: Tokenizer, config: Any, path: Path | None = None) -> torch.Tensor:
    """Windows of tokens, int64 `[W, T]`, of the text in `path`, or of Python's help topics; T fits the model's config.

    Raises QuantizationError for a file that cannot be read as UTF-8, is above 16 MiB or has no whole window.
    """
    text = read_text(path, QuantizationError) if path else calibration_text()
    ids = [each for each in tokenizer.encode(text, bos=False, parse_special=False) if each < config.vocab_size]
    positions = getattr(config, "max_position_embeddings", None) or _LENGTH
    try:
        return windows_of(ids, tokenizer.bos_ids, length=min(_LENGTH, positions))
    except QuantizationError as error:
        raise QuantizationError(f"{path or 'the text that ships with Python'}: {error}") from error


def windows_of(ids: Sequence[int], first: Sequence[int] = (), count: int = 8, length: int = _LENGTH) -> torch.Tensor:
    """Windows int64 `[count, length]`, fewer for a short text, evenly spread over a text's tokens.

    Each window begins with the tokens `first`, for models that want a beginning of a sequence. Raises
    QuantizationError if the text has no whole window.
    """
    width = length - len(first)
    whole = len(ids) // width
    if not whole:
        raise QuantizationError(f"the calibration text has {len(ids)} tokens. Give one of {length} or more")
    taken = [whole * index // min(count, whole) for index in range(min(count, whole))]
    return torch.tensor([[*first, *ids[at * width : (at + 1) * width]] for at in taken])


def measure_importance(model: Any, windows: torch.Tensor, done: Callable[[float], None] = lambda _: None) -> Importance:
    """The importance of a causal model's linear layers and of its token embedding for windows `[W, T]` of tokens.

    The model is a transformers model in float32, whose weights may be loaded as it runs. Experts are measured if
    `own_expert_layers` turned them into layers. Parameters get no gradients, and decoder layers compute twice, so that
    memory holds the activations of one layer only. Equal windows give equal numbers. `done` gets the finished share, 0
    to 1, and may raise to stop.
    """
    importance = Importance()
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, ExpertLinear) or is_plain_linear(layer)
    }
    layers[EMBEDDING] = model.get_input_embeddings()
    with _without_gradients(model), _computing_twice(model):
        for number, some in enumerate(windows.split(_TOGETHER)):
            with _watched(layers, importance):
                loss = _loss(model, some)
            loss.backward()
            done(min(1.0, (number + 1) * _TOGETHER / len(windows)))
    tokens = windows.shape[0] * (windows.shape[1] - 1)
    for sums in (importance.inputs, importance.outputs):
        for total in sums.values():
            total /= tokens
    return _trusted(importance, layers)


def _trusted(importance: Importance, layers: Mapping[str, nn.Module]) -> Importance:
    """The measurements that are finite and whose outputs got a gradient; notes how many layers have none."""
    trusted = Importance()
    for name, outputs in importance.outputs.items():
        inputs = importance.inputs.get(name, outputs)
        if outputs.isfinite().all() and outputs.any() and inputs.isfinite().all():
            trusted.outputs[name] = outputs
            if name in importance.inputs:
                trusted.inputs[name] = inputs
    if missing := len(layers) - len(trusted.outputs):
        note(
            f"{missing} of {len(layers)} layers could not be measured on the text: their bits follow from errors alone."
        )
    return trusted


@contextmanager
def _without_gradients(model: nn.Module) -> Iterator[None]:
    """Disables the gradients of all parameters in the block."""
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, before in wanted.items():
            parameter.requires_grad_(before)


@contextmanager
def _computing_twice(model: Any) -> Iterator[None]:
    """Has decoder layers in the block store their inputs only and compute the rest again for gradients.

    https://arxiv.org/abs/1604.06174. Transformers does so for layers in training mode, so only these modules are put
    into it, and not the ones inside, which might apply dropout.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not (layers and model.supports_gradient_checkpointing):
        yield
        return
    model.activation_checkpointing_enable({"use_reentrant": False})
    try:
        for layer in layers:
            layer.training = True
        yield
    finally:
        for layer in layers:
            layer.training = False
        model.activation_checkpointing_disable()


@contextmanager
def _watched(layers: Mapping[str, nn.Module], importance: Importance) -> Iterator[None]:
    """Sums the squares of the layers' inputs, and of the gradients at their outputs, in the block."""
    hooks = [layer.register_forward_hook(_summing(importance, name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _loss(model: Any, windows: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum")


def _summing(importance: Importance, name: str) -> Any:
    def add(sums: dict[str, torch.Tensor], rows: torch.Tensor, per_token: int = 1) -> None:
        squares = rows.detach().flatten(0, -2).square().sum(0) / per_token
        sums[name] = sums[name] + squares if name in sums else squares

    def hook(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        experts = 1
        if isinstance(layer, ExpertLinear):
            rows, chosen = inputs
            experts = layer.experts
            add(importance.inputs, rows, chosen.shape[1] if rows.dim() == 3 else 1)
        elif isinstance(layer, nn.Linear):
            add(importance.inputs, inputs[0])
        elif output.is_leaf:
            # The first that a gradient reaches: no parameter wants one. Models may change it in place, but no leaf.
            output = output.requires_grad_().clone()
        if output.requires_grad:  # some layers choose only, as an indexer does
            output.register_hook(lambda gradient: add(importance.outputs, gradient, experts))
        return output

    return hook
