"""LoRA adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685), as peft writes them, merged into weights.

An adapter is a folder of `adapter_config.json` and `adapter_model.safetensors`. A weight W becomes W + s B A, where s
is `lora_alpha / r`, or `lora_alpha / sqrt(r)` with `use_rslora`; weights that it holds whole replace the model's.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.hf.blocks import forget_blocks
from agentkv_runtime.hf.weights import Weights
from agentkv_runtime.sources.adapter_config import INSTEAD, PAIR, PREFIX, rank_of, read_adapter_config, scale_of

__all__ = ["LoraWeights", "merge_adapter"]


class LoraWeights:
    """A `Weights` that merges an adapter into another one.

    Attributes:
        changed: names of the weights that the adapter changes.
    """

    def __init__(self, base: Weights, adapter: Path) -> None:
        """Reads the adapter.

        Raises ExportError for a folder without an adapter, or with one that does not fit the model, and
        UnsupportedModelError for adapters of other kinds than LoRA.
        """
        self._base = base
        self._config = read_adapter_config(adapter)
        try:
            with safe_open(adapter / "adapter_model.safetensors", "pt") as file:
                stored = {name.removeprefix(PREFIX): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ExportError(f"{adapter}: adapter_model.safetensors cannot be read: {error}") from error
        self._whole: dict[str, torch.Tensor] = {}
        self._pairs: dict[str, dict[str, torch.Tensor]] = {}
        there = set(base.names())
        for name, tensor in stored.items():
            pair = PAIR.fullmatch(name)
            target = f"{pair['module']}.weight" if pair else re.sub(r"\.(modules_to_save|base_layer)(?=\.)", "", name)
            if target not in there:
                raise UnsupportedModelError(f"{adapter}: changes {name}, which the model does not have. {INSTEAD}")
            if pair is None:
                self._whole[target] = tensor
            else:
                self._pairs.setdefault(target, {})[f"{pair['kind'] or ''}{pair['side']}"] = tensor
        incomplete = [name for name, sides in self._pairs.items() if len(sides) != 2]
        if incomplete or not stored:
            what = f"{incomplete[0]} has one of its two matrices" if incomplete else "holds no weights"
            raise ExportError(f"{adapter}: {what}. Download the whole adapter")
        self._adapter = adapter
        self.changed = {*self._pairs, *self._whole}

    def names(self) -> Collection[str]:
        """Names of the model's weights."""
        return self._base.names()

    def load(self, name: str) -> torch.Tensor:
        """A weight with its change, which makes it float32. Raises ExportError if the shapes do not fit."""
        if name not in self.changed:
            return self._base.load(name)
        weight = self._base.load(name)
        new = self._whole.get(name, weight).float()
        if name in self._pairs:
            new = self._merged(name, new)
        if new.shape != weight.shape:
            raise ExportError(
                f"{self._adapter}: is for a {name} of {list(new.shape)}, and the model's is {list(weight.shape)}. Give "
                "the model that it was trained on"
            )
        return new

    def _merged(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        sides = {side: matrix.float() for side, matrix in self._pairs[name].items()}
        rank = rank_of(self._config, name.removesuffix(".weight"))
        for side, matrix in sides.items():
            inner = matrix.shape[0 if side.endswith("A") else -1] if matrix.dim() == 2 else None
            if inner != rank:
                raise ExportError(
                    f"{self._adapter}: {side} of {name} is {list(matrix.shape)}, which is not of rank {rank:g}, as "
                    "adapter_config.json says. Download the whole adapter"
                )
        if "embedding_A" in sides:
            change = (sides["embedding_B"] @ sides["embedding_A"]).T
        else:
            change = sides["B"] @ sides["A"]
            change = change.T if self._config.get("fan_in_fan_out") else change
        change = change * scale_of(self._config, name.removesuffix(".weight"))
        return weight + change if change.shape == weight.shape else change  # `load` says what does not fit


class _ModelWeights:
    """A `Weights` over a model in memory."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._parameters = dict(model.named_parameters())

    def names(self) -> Collection[str]:
        return self._parameters.keys()

    def load(self, name: str) -> torch.Tensor:
        return self._parameters[name]


@torch.no_grad()
def merge_adapter(model: PreTrainedModel, adapter: Path) -> None:
    """Merges an adapter into a model's weights in place. Raises ExportError before any weight is changed."""
    weights = LoraWeights(_ModelWeights(model), adapter)
    if model.config.get_text_config().tie_word_embeddings:
        embedding = model.get_input_embeddings().weight
        if any(model.get_parameter(name) is embedding for name in weights.changed):
            raise UnsupportedModelError(
                f"{adapter}: changes the embedding, which the model's head shares, so that merging would change both. "
                f"{INSTEAD}"
            )
    merged = {name: weights.load(name) for name in sorted(weights.changed)}
    for name, weight in merged.items():
        parameter = model.get_parameter(name)
        parameter.copy_(weight)
        forget_blocks(parameter)
