"""What an export has made beside the program's file, for the manifest."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentkv_runtime.folder.manifest import FeatureInfo, WeightRecipe
from agentkv_runtime.folder.metadata import KvCacheMetadata

__all__ = ["EMBEDDING_TITLE", "Made", "WeightFacts"]

EMBEDDING_TITLE = "the embedding"
"""What stands for the token embedding among names of layers."""


@dataclass(frozen=True)
class WeightFacts:
    """What became of each layer's weight, by the layer's name. See `Manifest`, which has them as `weight_...`."""

    errors: dict[str, float] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Made:
    """A program that was written, as the manifest describes it."""

    metadata: KvCacheMetadata
    vocab_size: int
    max_positions: int | None
    """Positions that a history may have, where anything bounds them."""
    trained_positions: int | None
    features: FeatureInfo | None
    weights: WeightFacts
    recipe: WeightRecipe | None
    """How the types of its weights were chosen, where blocks were made of them."""
    made_with: tuple[str, ...]
    """Packages that had a part in it."""
