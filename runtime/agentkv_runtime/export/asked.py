"""Options and source of an export, as the caller gave them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv_runtime.folder.manifest import DType, Quantization, Scales, WeightRecipe

if TYPE_CHECKING:
    from agentkv_runtime.gguf.architectures import Description
    from agentkv_runtime.hf.features import Features

__all__ = ["Options", "Source"]


@dataclass(frozen=True)
class Options:
    """Options of an export."""

    quant: Quantization
    scales: Scales
    int8: tuple[str, ...]
    embedding: int
    backend: str
    dtype: DType
    max_tokens: int
    max_logits: int
    max_context: int | None
    features: Features
    mtp: bool | None
    """Whether to export a multi-token prediction layer with the model; None: if there is one that can be."""
    calibrate: Path | None
    recipe: WeightRecipe | None
    """How block types are chosen; None: fixed if the program is written without torch, otherwise measured."""

    def lowering(self) -> dict[str, Any]:
        """The options that `lower_model` takes, by parameter name."""
        taken = asdict(self)
        for name in ("quant", "scales", "int8", "embedding", "calibrate", "recipe", "mtp"):
            del taken[name]
        return taken


@dataclass(frozen=True)
class Source:
    """The model that is exported."""

    weights: Path
    """A Hugging Face folder, or a GGUF file."""
    described: Path
    """Folder with config and tokenizer."""
    gguf: Description | None
    """Description of a GGUF file; None for other sources."""
    adapter: Path | None
    name: str
