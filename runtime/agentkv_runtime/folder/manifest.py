"""`agentkv.json`: the description of the program in a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.folder.metadata import LayerShape
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import read_text

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "Bytes",
    "DType",
    "FeatureInfo",
    "Fingerprint",
    "LinearLayers",
    "Manifest",
    "Positive",
    "Quantization",
    "Scales",
    "WeightRecipe",
    "first_fault",
    "parse_manifest",
    "read_manifest",
    "write_manifest",
    "write_unfinished_mark",
]

FORMAT_VERSION = 1
MANIFEST_NAME = "agentkv.json"

Quantization = Literal["none", "file", "q4", "q5", "q6", "q8", "8da8w", "8da4w", "affine8", "affine4"]
DType = Literal["fp32", "fp16", "bf16"]
Scales = Literal["search", "largest"]
WeightRecipe = Literal["fixed", "measured"]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""A count that fits the native side's int32."""
Bytes = Annotated[int, Field(ge=1, le=2**63 - 1)]
Window = Annotated[int, Field(ge=0, le=2**31 - 1)]
Fingerprint = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Model = TypeVar("Model", bound=BaseModel)


class FeatureInfo(BaseModel):
    """Residual streams that a forward returns for draft heads beside the logits, concatenated."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    layers: tuple[Positive, ...]
    """Number of decoder layers after which each stream is taken."""
    width: Positive
    """Floats per row, all streams together."""


class LinearLayers(BaseModel):
    """Linear layers that are one product over a weight of the program."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    inputs: Positive
    layers: tuple[tuple[str, Positive], ...]
    """Name and number of outputs of each layer, in the order of the product's outputs."""
    shared: bool = False
    """Whether other products have weights of the same bytes, which the program has once; `layers` are then those of all
    of them."""


class Manifest(BaseModel):
    """Properties of an exported program, readable without loading it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format_version: int = FORMAT_VERSION
    backend: str = "cpu"
    quantization: Quantization = "none"
    dtype: DType = "fp32"
    """Dtype of activations, and of weights that are not quantised."""
    source: str
    """Name of the model that was exported; for people."""
    model_type: str = "unknown"
    """The architecture's name in transformers, such as `llama`."""
    fingerprint: Fingerprint
    """SHA-256 of `model.pte`, by which a snapshot recognises its model."""
    model_bytes: Bytes
    vocab_size: Positive
    max_tokens: Positive
    """Rows that one forward takes at most."""
    max_logits: Positive
    """Logits rows that one forward returns at most."""
    max_positions: Positive | None = None
    """Positions that the program can compute; None where nothing bounds them."""
    trained_positions: Positive | None = None
    """Positions that the model was trained on, where its config says that they are fewer than `max_positions`."""
    n_layers: Positive
    n_kv_heads: Positive
    head_dim: Positive
    windows: tuple[Window, ...] = ()
    """Window of each layer in positions, 0 for unbounded; empty when every layer is unbounded."""
    shapes: tuple[LayerShape, ...] = ()
    """Shape of each layer's cache entry per token; empty where all are `n_kv_heads` keys and values of `head_dim`."""
    features: FeatureInfo | None = None
    call_format: str | None = None
    """Name of the format in which the model writes calls; None where the export did not look for one."""
    weight_errors: dict[str, float] = Field(default_factory=dict)
    """Relative quantisation error of each layer's weight: norm of the difference divided by the weight's norm."""
    weight_bits: dict[str, int] = Field(default_factory=dict)
    """Bits per number of each quantised layer's weight."""
    weight_counts: dict[str, Bytes] = Field(default_factory=dict)
    """Numbers in each layer's weight, quantised or not; empty in older exports."""
    weight_bytes: dict[str, Bytes] = Field(default_factory=dict)
    """Bytes that each layer's weight takes in the program, scales included."""
    weight_types: dict[str, str] = Field(default_factory=dict)
    """Block type of each layer's weight, such as `q4_k`, for programs that run a GGUF file's own blocks. A weight that
    was converted names both: `q6_k as affine8`."""
    weight_recipe: WeightRecipe | None = None
    """How the export chose the block types of weights: `fixed`, from what layers usually need, or `measured` on a text.
    None where it made no blocks, and in older exports."""
    linears: dict[str, LinearLayers] = Field(default_factory=dict)
    """Linear layers that LoRA adapters can be added to, by the names of their weights in the program. Empty for
    programs whose linear layers are not our own instructions, and in older exports."""
    exported_with: dict[str, str] = Field(default_factory=dict)
    """Versions of the packages that made the program."""

    @property
    def feature_dim(self) -> int:
        """Floats per row that a forward returns for draft heads; 0 for none."""
        return self.features.width if self.features else 0

    @model_validator(mode="after")
    def _layers_have_a_window_each(self) -> Manifest:
        if self.windows and len(self.windows) != self.n_layers:
            raise ValueError(f"{len(self.windows)} windows for {self.n_layers} layers")
        if self.shapes and len(self.shapes) != self.n_layers:
            raise ValueError(f"{len(self.shapes)} shapes for {self.n_layers} layers")
        return self


def read_manifest(path: Path) -> Manifest:
    """Reads and checks `agentkv.json`. Raises ModelFolderError naming the file and the field."""
    return parse_manifest(path, Manifest, FORMAT_VERSION)


def parse_manifest(path: Path, kind: type[Model], format_version: int) -> Model:
    """Reads a JSON file of `kind`, after checking its format version. Raises ModelFolderError."""
    text = read_text(path, ModelFolderError)
    try:
        if _Mark.model_validate_json(text).unfinished:
            raise ModelFolderError(
                f"{path}: an export into this folder is under way, or was stopped halfway. Export it again"
            )
        version = _Version.model_validate_json(text).format_version
        if version != format_version:
            raise ModelFolderError(
                f"{path}: model folder format {version}; this version of agentkv reads {format_version}. "
                "Install the agentkv that exported it, or export the model again"
            )
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise ModelFolderError(f"{path}: {first_fault(error)}. Export the model again") from error


def first_fault(error: ValidationError) -> str:
    """The first error as one line, `field: message`."""
    first = error.errors()[0]
    where = printable(".".join(str(part) for part in first["loc"]))
    return f"{where + ': ' if where else ''}{first['msg']}"


def write_manifest(manifest: BaseModel, path: Path) -> None:
    """Writes the manifest as indented JSON."""
    path.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def write_unfinished_mark(path: Path) -> None:
    """Writes a mark in the manifest's place while an export replaces the files that it describes."""
    path.write_text(_Mark(unfinished=True).model_dump_json() + "\n", encoding="utf-8")


class _Version(BaseModel):
    format_version: int


class _Mark(BaseModel):
    unfinished: bool = False
