"""The weights of a GGUF file, dequantised, under the names that transformers gives them.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What a file's names mean, and what the writers
of such files did to tensors (Llama's permuted heads, Gemma's norms), is transformers' knowledge; the package gguf
dequantises.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import dequantize
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.hf.blocks import Blocks, keep_blocks
from agentkv_runtime.hf.load import read_config
from agentkv_runtime.sources.gguf_reading import open_gguf
from agentkv_runtime.sources.placing import place_weights

__all__ = ["GGUFWeights", "load_gguf"]

_OF_THE_CONFIG = {"rope_freqs.weight"}


class GGUFWeights:
    """The tensors of a file; a `Weights`. Read from the mapped file one by one."""

    def __init__(self, path: Path, model: PreTrainedModel) -> None:
        """`model` says which names there are; its own weights are not looked at, so it may be on the meta device.

        Raises ExportError for a file that cannot be read, and for tensors that the model has no place for.
        """
        self._path = path
        reader = open_gguf(path)
        architecture = reader.fields["general.architecture"].contents()
        kind: Any = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
        self._processor = kind(config=model.config.to_dict())
        places: dict[str, str] = get_gguf_hf_weights_map(model, self._processor)
        unknown = [t.name for t in reader.tensors if t.name not in places and t.name not in _OF_THE_CONFIG]
        if unknown:
            raise UnsupportedModelError(
                f"{path}: holds {len(unknown)} tensors that {model.config.model_type} has no place for "
                f"({', '.join(unknown[:3])}). Export the Hugging Face folder that it was made from"
            )
        self._tensors = {places[t.name]: t for t in reader.tensors if t.name in places}

    def names(self) -> Collection[str]:
        """Names of parameters; tied ones once."""
        return self._tensors.keys()

    def load(self, name: str) -> torch.Tensor:
        """A parameter, dequantised to float32. Raises ExportError."""
        tensor = self._tensors[name]
        try:
            stored = dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise ExportError(f"{self._path}: {tensor.name} is {tensor.tensor_type.name}: {error}") from error
        weights = self._processor.process(weights=stored, name=tensor.name).weights
        return torch.from_numpy(weights.copy())

    def blocks(self, name: str) -> Blocks | None:
        """The parameter as the file has it, its rows in the order of `load`; None for what is no matrix of its rows."""
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor.shape) != 2:
            return None
        outputs = int(tensor.shape[1])  # files count from the innermost dimension
        order = self._row_order(tensor.name, outputs)
        if order is None:
            return None
        rows = tensor.data.view(np.uint8).reshape(outputs, -1)
        return Blocks(int(tensor.tensor_type), rows.shape[1], lambda: torch.from_numpy(rows[order]))

    def _row_order(self, name: str, outputs: int) -> np.ndarray[Any, Any] | None:
        """Where rows of a tensor go when the processor has it: told by what becomes of their numbers."""
        numbers = np.arange(outputs, dtype=np.float64)[:, None]
        processed = self._processor.process(weights=numbers, name=name).weights
        if processed.shape != numbers.shape or not np.array_equal(np.sort(processed, axis=0), numbers):
            return None
        return processed[:, 0].astype(np.int64)


def load_gguf(path: Path, described: Path) -> PreTrainedModel:
    """The float32 model of a GGUF file whose config is in the folder `described`; parameters know their blocks.

    Raises ExportError.
    """
    config = read_config(described)
    config._attn_implementation = "eager"
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = GGUFWeights(path, model)
    missing = place_weights(weights, model)
    if missing:
        raise ExportError(f"{path}: {len(missing)} weights are missing ({', '.join(missing[:3])}). Download it again")
    for name, parameter in model.named_parameters():
        if (blocks := weights.blocks(name)) is not None:
            keep_blocks(parameter, blocks)
    model.eval()
    return model
