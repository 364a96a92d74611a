"""`agentkv.json`: what a model folder says about the program it holds."""

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
"""A count that the native side can hold."""
Bytes = Annotated[int, Field(ge=1, le=2**63 - 1)]
Window = Annotated[int, Field(ge=0, le=2**31 - 1)]
Fingerprint = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Model = TypeVar("Model", bound=BaseModel)


class FeatureInfo(BaseModel):
    """What a forward gives out for draft heads besides the logits: residual streams, side by side."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    layers: tuple[Positive, ...]
    """After how many decoder layers each of them is taken."""
    width: Positive
    """Floats per row, of all of them together."""


class Manifest(BaseModel):
    """Facts of an exported program that can be known without loading it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format_version: int = FORMAT_VERSION
    backend: str = "cpu"
    quantization: Quantization = "none"
    dtype: DType = "fp32"
    """Of activations, and of weights that are not quantised."""
    source: str
    """Name of the model that was exported; for people."""
    model_type: str = "unknown"
    """The architecture's name in transformers, such as `llama`."""
    fingerprint: Fingerprint
    """SHA-256 of `model.pte`: what tells a snapshot whether it belongs to this model."""
    model_bytes: Bytes
    vocab_size: Positive
    max_tokens: Positive
    """Rows that one forward takes at most."""
    max_logits: Positive
    """Logits rows that one forward returns at most."""
    max_positions: Positive | None = None
    """Positions that a history may have, where anything bounds them: up to here the program computes the model."""
    trained_positions: Positive | None = None
    """Of these, positions that the model was trained on, where its config tells that they are fewer."""
    n_layers: Positive
    n_kv_heads: Positive
    head_dim: Positive
    windows: tuple[Window, ...] = ()
    """How far back each layer looks in positions, 0 for all; empty when all do."""
    shapes: tuple[LayerShape, ...] = ()
    """What each layer keeps of a token; empty where all keep `n_kv_heads` keys and values of `head_dim`."""
    features: FeatureInfo | None = None
    call_format: str | None = None
    """How the model writes calls: the name of a format; None where it was not looked for."""
    weight_errors: dict[str, float] = Field(default_factory=dict)
    """What quantisation lost of each layer's weight: the norm of the difference beside the weight's own."""
    weight_bits: dict[str, int] = Field(default_factory=dict)
    """Bits of each layer's weight that is quantised."""
    weight_counts: dict[str, Bytes] = Field(default_factory=dict)
    """Numbers in each layer's weight, quantised or not; empty in older exports."""
    weight_bytes: dict[str, Bytes] = Field(default_factory=dict)
    """Bytes that each layer's weight takes in the program, scales included."""
    weight_types: dict[str, str] = Field(default_factory=dict)
    """The type that each layer's weight has in a GGUF file that is run in its own blocks, such as `q4_k`; where its
    values are others in the program, also what it became: `q6_k as affine8`."""
    weight_recipe: WeightRecipe | None = None
    """How the types of blocks that were made of weights were chosen: by what layers usually need, or by what a text
    showed that these need; None where no blocks were made, and in older exports."""
    exported_with: dict[str, str] = Field(default_factory=dict)
    """Versions of the packages that made the program."""

    @property
    def feature_dim(self) -> int:
        """Floats that a forward gives out per row for draft heads; 0 for none."""
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
    """Reads a JSON file of `kind`, whose format version is looked at first. Raises ModelFolderError."""
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
    """The first thing that is wrong, in one line."""
    first = error.errors()[0]
    where = printable(".".join(str(part) for part in first["loc"]))
    return f"{where + ': ' if where else ''}{first['msg']}"


def write_manifest(manifest: BaseModel, path: Path) -> None:
    """Writes the manifest as indented JSON."""
    path.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def write_unfinished_mark(path: Path) -> None:
    """Writes what stands in a manifest's place while the files that it describes are replaced."""
    path.write_text(_Mark(unfinished=True).model_dump_json() + "\n", encoding="utf-8")


class _Version(BaseModel):
    format_version: int


class _Mark(BaseModel):
    unfinished: bool = False
