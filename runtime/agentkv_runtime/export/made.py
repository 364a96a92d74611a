"""Facts about an exported program, for the manifest."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentkv_runtime.folder.manifest import FeatureInfo, LinearLayers, WeightRecipe
from agentkv_runtime.folder.metadata import KvCacheMetadata

__all__ = ["EMBEDDING_TITLE", "Made", "WeightFacts"]

EMBEDDING_TITLE = "the embedding"
"""Name of the token embedding among names of layers."""


@dataclass(frozen=True)
class WeightFacts:
    """Facts about each layer's weight, by layer name; see the fields `weight_...` of `Manifest`."""

    errors: dict[str, float] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Made:
    """Facts about a written program."""

    metadata: KvCacheMetadata
    vocab_size: int
    max_positions: int | None
    """Positions that the program can compute; None where nothing bounds them."""
    trained_positions: int | None
    features: FeatureInfo | None
    weights: WeightFacts
    recipe: WeightRecipe | None
    """How block types were chosen; None if no blocks were made."""
    made_with: tuple[str, ...]
    """Packages that made the program."""
    linears: dict[str, LinearLayers]
    """Linear layers by the names of their weights, see `Manifest.linears`."""
