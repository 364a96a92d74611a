"""`agentkv.json`: what a model folder says about the program it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkv_runtime.errors import ModelFolderError

__all__ = ["FORMAT_VERSION", "MANIFEST_NAME", "Manifest", "Quantization", "read_manifest", "write_manifest"]

FORMAT_VERSION = 1
MANIFEST_NAME = "agentkv.json"

Quantization = Literal["none", "8da8w", "8da4w"]
Positive = Annotated[int, Field(ge=1)]
Fingerprint = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """Facts of an exported program that can be known without loading it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format_version: int = FORMAT_VERSION
    backend: str = "cpu"
    quantization: Quantization = "none"
    source: str
    """Name of the model that was exported; for people."""
    model_type: str = "unknown"
    """The architecture's name in transformers, such as `llama`."""
    fingerprint: Fingerprint
    """SHA-256 of `model.pte`: what tells a snapshot whether it belongs to this model."""
    model_bytes: Positive
    vocab_size: Positive
    max_tokens: Positive
    """Rows that one forward takes at most."""
    max_logits: Positive
    """Logits rows that one forward returns at most."""
    max_positions: Positive | None = None
    """Positions that the model was trained for, where its configuration says so."""
    n_layers: Positive
    n_kv_heads: Positive
    head_dim: Positive
    windows: tuple[int, ...] = ()
    exported_with: dict[str, str] = Field(default_factory=dict)
    """Versions of the packages that made the program."""


def read_manifest(path: Path) -> Manifest:
    """Reads and checks `agentkv.json`. Raises ModelFolderError naming the file and the field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"{path}: cannot be read: {error}") from error
    try:
        version = _Version.model_validate_json(text).format_version
        if version != FORMAT_VERSION:
            raise ModelFolderError(
                f"{path}: model folder format {version}; this version of agentkv reads {FORMAT_VERSION}. "
                "Install the agentkv that exported it, or export the model again"
            )
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ModelFolderError(
            f"{path}: {where + ': ' if where else ''}{first['msg']}. Export the model again"
        ) from error


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Writes the manifest as indented JSON."""
    path.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


class _Version(BaseModel):
    format_version: int
