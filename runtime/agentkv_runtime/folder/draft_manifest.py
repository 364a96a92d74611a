"""`draft.json`: the description of the draft head in a model folder."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.folder.manifest import Bytes, Fingerprint, Positive, Quantization, parse_manifest, write_manifest

__all__ = [
    "DRAFT_FORMAT_VERSION",
    "DRAFT_MANIFEST_NAME",
    "MTP_MANIFEST_NAME",
    "DraftManifest",
    "MeasuredAcceptance",
    "read_draft_manifest",
    "record_acceptance",
]

DRAFT_FORMAT_VERSION = 1
DRAFT_MANIFEST_NAME = "draft.json"
MTP_MANIFEST_NAME = "mtp.json"


Rate = Annotated[float, Field(ge=0, le=1)]


class MeasuredAcceptance(BaseModel):
    """Rates at which the target accepted the head's proposals, measured with the exported programs.

    A Context expects this of the head until it has seen enough drafts of its own.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    levels: Annotated[tuple[Rate, ...], Field(max_length=16)] = ()
    """Rate per level of a draft, given that the levels above were accepted; levels without samples are left out."""
    calibration: Annotated[tuple[Rate, ...], Field(max_length=16)] = ()
    """Rate of nodes with an accepted parent, in 16 bins of the probability that the head gave them.

    A bin without samples has its own centre, as if the head's probabilities were right."""


class DraftManifest(BaseModel):
    """Properties of an exported draft head, readable without loading it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format_version: int = DRAFT_FORMAT_VERSION
    kind: Literal["eagle3", "mtp"] = "eagle3"
    """An EAGLE-3 head, or a model's own multi-token prediction layer."""
    quantization: Quantization = "none"
    source: str
    """Name of the checkpoint that was exported; for people."""
    fingerprint: Fingerprint
    """SHA-256 of the program beside it."""
    model_bytes: Bytes
    hidden_dim: Positive
    """H: floats per row of the head's input and output."""
    feature_dim: Positive
    """F: floats per row that the target must return as features."""
    draft_vocab_size: Positive
    target_vocab_size: Positive
    d2t: tuple[int, ...] = ()
    """Draft token i is target token `i + d2t[i]`; empty when the vocabularies are equal."""
    max_tokens: Positive
    """Largest number of rows that one forward takes."""
    max_logits: Positive
    """Largest number of rows that one forward returns."""
    n_kv_heads: Positive
    head_dim: Positive
    tokenizer_fingerprint: Fingerprint
    """SHA-256 of the target's `tokenizer.json`."""
    acceptance: MeasuredAcceptance | None = None
    exported_with: dict[str, str] = Field(default_factory=dict)
    """Versions of the packages that made the program."""

    @model_validator(mode="after")
    def _tokens_are_the_targets(self) -> DraftManifest:
        if not self.d2t:
            if self.draft_vocab_size != self.target_vocab_size:
                raise ValueError(
                    f"no d2t, but vocabularies of {self.draft_vocab_size} and {self.target_vocab_size} tokens"
                )
            return self
        if len(self.d2t) != self.draft_vocab_size:
            raise ValueError(f"d2t has {len(self.d2t)} entries for a vocabulary of {self.draft_vocab_size}")
        for index, offset in enumerate(self.d2t):
            if not 0 <= index + offset < self.target_vocab_size:
                raise ValueError(
                    f"d2t makes draft token {index} target token {index + offset}, of {self.target_vocab_size}"
                )
        return self


def read_draft_manifest(path: Path) -> DraftManifest:
    """Reads and checks `draft.json`. Raises ModelFolderError naming the file and the field."""
    return parse_manifest(path, DraftManifest, DRAFT_FORMAT_VERSION)


def record_acceptance(path: Path, acceptance: MeasuredAcceptance) -> None:
    """Writes a measurement into the `draft.json` at `path`, atomically by a rename.

    Raises ModelFolderError for a file that is no draft manifest or cannot be replaced.
    """
    manifest = read_draft_manifest(path).model_copy(update={"acceptance": acceptance})
    path = path.resolve()
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.unlink(missing_ok=True)  # whatever it is, it is nobody's
        write_manifest(manifest, fresh)
        shutil.copymode(path, fresh)
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise ModelFolderError(f"{path}: cannot be replaced: {error.strerror}") from error
