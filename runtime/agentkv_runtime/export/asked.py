"""What somebody asks an export for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv_runtime.folder.manifest import DType, Quantization, Scales, WeightRecipe

if TYPE_CHECKING:
    from agentkv_runtime.gguf.architectures import Description

__all__ = ["Options", "Source"]


@dataclass(frozen=True)
class Options:
    """How a model is exported."""

    quant: Quantization
    scales: Scales
    int8: tuple[str, ...]
    embedding: int
    backend: str
    dtype: DType
    max_tokens: int
    max_logits: int
    max_context: int | None
    features: bool
    calibrate: Path | None
    recipe: WeightRecipe | None
    """None: fixed where the program is written without torch, and otherwise measured."""

    def lowering(self) -> dict[str, Any]:
        """What `lower_model` takes of it, under its names."""
        taken = asdict(self)
        for name in ("quant", "scales", "int8", "embedding", "calibrate", "recipe"):
            del taken[name]
        return taken


@dataclass(frozen=True)
class Source:
    """What is exported."""

    weights: Path
    """A Hugging Face folder, or a GGUF file."""
    described: Path
    """Where its config and its tokenizer are."""
    gguf: Description | None
    """What a GGUF file says of it."""
    adapter: Path | None
    name: str
