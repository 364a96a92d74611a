"""What an error in each weight costs, measured on a text."""

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
    """By the names of linear layers, those of experts too, and of the token embedding. An error `E` of a weight
    `[O, I]` raises the loss by about half of `outputs @ E**2 @ inputs`, one of a weight `[E, O, I]` by the sum of that
    over experts: the Fisher information, its factors and their diagonals alone, as in https://arxiv.org/abs/1503.05671.
    """

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """float32 `[I]`: the mean square of each input, for experts of the rows that meet one."""
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """float32 `[O]`: the mean square of the loss's gradient at each output, for experts over all of them: it is 0 at
    those that a token did not choose."""

    def usual(self) -> float:
        """The middle layer's product of both: what is taken for one that was not measured. 1 where none was."""
        products = [float(self.outputs[name].mean() * inputs.mean()) for name, inputs in self.inputs.items()]
        return median(products) if products else 1.0


def calibration_text() -> str:
    """English prose, tables, and source that every Python has: the help topics."""
    return default_text()[_SKIPPED:]


def calibration_windows(tokenizer: Tokenizer, config: Any, path: Path | None = None) -> torch.Tensor:
    """int64 `[W, T]`: windows of the text in a file, or of one that ships with Python, as a model's config allows them.

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
    """int64 `[count, length]`, fewer for a short text: stretches of a text's tokens, taken evenly from all of it.

    `first` are the tokens that each window begins with, for models that want a beginning of a sequence. Raises
    QuantizationError where the text has no whole window.
    """
    width = length - len(first)
    whole = len(ids) // width
    if not whole:
        raise QuantizationError(f"the calibration text has {len(ids)} tokens. Give one of {length} or more")
    taken = [whole * index // min(count, whole) for index in range(min(count, whole))]
    return torch.tensor([[*first, *ids[at * width : (at + 1) * width]] for at in taken])


def measure_importance(model: Any, windows: torch.Tensor, done: Callable[[float], None] = lambda _: None) -> Importance:
    """The importance of a causal model's linear layers and of its token embedding for windows `[W, T]` of tokens.

    The model is one of transformers, in float32, and may be loading as it runs; experts are seen where
    `own_expert_layers` made layers of them. Its parameters get no gradients, and
    decoder layers compute twice, so that the activations of one are in memory and not those of all. Equal windows give
    equal numbers. `done` is told the share that is over, and may raise to stop.
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
    """What is finite, and reached by a gradient at all: random models and some kinds of layers are not."""
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
    """In the block, no parameter gets gradients."""
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, before in wanted.items():
            parameter.requires_grad_(before)


@contextmanager
def _computing_twice(model: Any) -> Iterator[None]:
    """In the block, decoder layers keep what goes in and compute the rest again on the way back.

    https://arxiv.org/abs/1604.06174. Transformers does so for layers in training: those alone are said to be, and not
    what is inside them, which may drop numbers then.
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
    """In the block, what goes into layers is summed; and on the way back, what comes to their outputs."""
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
