"""Loading of a GGUF file as a float32 model, whose parameters keep references to their blocks."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentkv_runtime.errors import ExportError, GGUFError, UnsupportedModelError
from agentkv_runtime.gguf.architectures import describe
from agentkv_runtime.gguf.file import open_file
from agentkv_runtime.hf.blocks import Blocks, keep_blocks
from agentkv_runtime.hf.load import read_config
from agentkv_runtime.sources.placing import place_weights

__all__ = ["GGUFWeights", "load_gguf"]


class GGUFWeights:
    """A `Weights` over a mapped GGUF file, which reads its tensors one by one."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises ExportError if it cannot be read."""
        try:
            self._weights = describe(open_file(path)).weights()
        except GGUFError as error:
            raise ExportError(str(error)) from error

    def names(self) -> Collection[str]:
        """Names of all parameters; of tied ones the first."""
        return self._weights.names()

    def load(self, name: str) -> torch.Tensor:
        """A parameter, dequantised to float32. Raises UnsupportedModelError for an unknown block type."""
        return torch.from_numpy(self._weights.floats(name).copy())

    def blocks(self, name: str) -> Blocks | None:
        """The parameter in the file's blocks, with rows in the order of `load`; None if it has no blocks."""
        found = self._weights.blocks(name)
        if found is None:
            return None
        rows = found.rows
        return Blocks(found.type, found.row_bytes, lambda: torch.from_numpy(rows()[:].copy()))


def load_gguf(path: Path, described: Path) -> PreTrainedModel:
    """Loads the float32 model of a GGUF file whose config is in the folder `described`; `blocks_of` finds its blocks.

    Raises ExportError.
    """
    config = read_config(described)
    config._attn_implementation = "eager"
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = GGUFWeights(path)
    nowhere = sorted(set(weights.names()) - set(model.state_dict()))
    if nowhere:
        raise UnsupportedModelError(
            f"{path}: {config.model_type} has no place for {len(nowhere)} of its weights ({', '.join(nowhere[:3])}). "
            "Export the Hugging Face folder that it was made from"
        )
    missing = place_weights(weights, model)
    if missing:
        raise ExportError(f"{path}: {len(missing)} weights are missing ({', '.join(missing[:3])}). Download it again")
    for name, parameter in model.named_parameters():
        if (blocks := weights.blocks(name)) is not None:
            keep_blocks(parameter, blocks)
    model.eval()
    return model
