"""Model folders: a program, its tokenizer and its manifest, which belong together."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import ModelFolderError, TokenizerError
from agentkv_runtime.folder.contents import config_missing, files_to_choose
from agentkv_runtime.folder.manifest import MANIFEST_NAME, Manifest, read_manifest
from agentkv_runtime.folder.small_files import open_regular, read_object
from agentkv_runtime.folder.verified import remembered_fingerprint
from agentkv_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

__all__ = [
    "MODEL_NAME",
    "ModelFolder",
    "file_fingerprint",
    "is_hf_folder",
    "is_model_folder",
    "read_model_folder",
    "read_tokenizer",
]

MODEL_NAME = "model.pte"
DRAFT_NAME = "draft.pte"
MTP_NAME = "mtp.pte"


@dataclass(frozen=True)
class ModelFolder:
    """An exported model on disk. Its parts are loaded on first use."""

    path: Path
    manifest: Manifest
    manifest_state: tuple[int, ...] = ()
    """State of the manifest's file when it was read, to recognise a replacement."""

    @property
    def model_path(self) -> Path:
        """Path of the program."""
        return self.path / MODEL_NAME

    @property
    def draft_path(self) -> Path | None:
        """Path of a draft head's program; None if the folder has none."""
        path = self.path / DRAFT_NAME
        return path if path.is_file() else None

    @property
    def mtp_path(self) -> Path | None:
        """Path of the program of the model's own multi-token prediction layer; None if the folder has none."""
        path = self.path / MTP_NAME
        return path if path.is_file() else None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer, read and checked once. Raises TokenizerError."""
        return read_tokenizer(self.path)

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """`generation_config.json`, or an empty dict. Raises ModelFolderError."""
        return read_object(self.path / "generation_config.json", ModelFolderError)

    def check_current(self) -> None:
        """Raises ModelFolderError if a model was exported into the folder since its manifest was read.

        Call it after reading several files of the folder: an export replaces the manifest first, so if that is the
        same, the files belong together.
        """
        if _state(self.path / MANIFEST_NAME) != self.manifest_state:
            raise ModelFolderError(f"{self.path}: a model was exported into it just now. Open it again")

    def verify(self, *, remembered: bool = False) -> None:
        """Reads the whole program and compares it with the manifest's fingerprint. Raises ModelFolderError.

        With `remembered`, does not read a program again that was verified before and is unchanged since.
        """
        path = self.model_path
        actual = remembered_fingerprint(path, file_fingerprint) if remembered else file_fingerprint(path)
        if actual != self.manifest.fingerprint:
            raise ModelFolderError(
                f"{self.model_path}: damaged or replaced: its fingerprint is {actual}, the manifest says "
                f"{self.manifest.fingerprint}. Copy the folder again or export the model again"
            )


def read_tokenizer(path: Path, library: LibraryTokenizer | None = None) -> Tokenizer:
    """Reads and checks the tokenizer of a model folder or Hugging Face folder. Raises TokenizerError.

    `library` is the object that tokenizer.json was written from, if at hand; it saves half a second of reading.
    """
    try:
        tokenizer = Tokenizer.from_folder(path, library)
        tokenizer.token_bytes()
        tokenizer.decode(tokenizer.encode("a", bos=True), skip_special=True)
    except (TokenizerError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the native library is no Exception
        raise TokenizerError(
            f"{path / 'tokenizer.json'}: no tokenizer that works: {type(error).__name__}: {error}"
        ) from error
    return tokenizer


def is_model_folder(path: str | Path) -> bool:
    """Whether `path` contains a manifest."""
    return (Path(path) / MANIFEST_NAME).is_file()


def is_hf_folder(path: str | Path) -> bool:
    """Whether `path` looks like a Hugging Face model: a configuration and weights, and no manifest of ours."""
    path = Path(path)
    return (path / "config.json").is_file() and not is_model_folder(path)


def file_fingerprint(path: str | Path) -> str:
    """`sha256:` and the digest of a file's bytes. Raises ModelFolderError."""
    with open_regular(Path(path), ModelFolderError) as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def read_model_folder(path: str | Path) -> ModelFolder:
    """Reads a folder's manifest and checks that its files are there and of the right size; loads nothing.

    Raises ModelFolderError that says what the path is instead and what to do.
    """
    path = Path(path)
    try:
        return _read_model_folder(path)
    except OSError as error:  # of looking whether something is there
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror}") from error


def _read_model_folder(path: Path) -> ModelFolder:
    if not path.exists():
        raise ModelFolderError(
            f"{path}: no such folder or file. Give the folder that `agentkv export` wrote, a GGUF file, or a name of "
            "`agentkv list`"
        )
    if not path.is_dir():
        raise ModelFolderError(f"{path}: a file, not a model folder. Give the folder that holds it")
    if is_hf_folder(path):
        raise ModelFolderError(
            f"{path}: a Hugging Face folder, not an exported one. Export it first: agentkv export {path} OUT_FOLDER"
        )
    if not os.path.lexists(path / MANIFEST_NAME):
        raise ModelFolderError(f"{path}: {_what_it_is(path)}")
    state = _state(path / MANIFEST_NAME)  # before it is read
    folder = ModelFolder(path, read_manifest(path / MANIFEST_NAME), state)
    if not folder.model_path.is_file():
        raise ModelFolderError(
            f"{path}: {MODEL_NAME} is missing or no regular file. Copy the folder again or export the model again"
        )
    size = folder.model_path.stat().st_size
    if size != folder.manifest.model_bytes:
        raise ModelFolderError(
            f"{folder.model_path}: truncated or replaced: {size} bytes, the manifest says "
            f"{folder.manifest.model_bytes}. Copy the folder again or export the model again"
        )
    return folder


def _what_it_is(path: Path) -> str:
    """What a folder without a manifest and a config holds instead, and what to do."""
    if instead := files_to_choose(path):
        return instead
    if any(path.glob("*.safetensors")) or (path / "tokenizer.json").is_file():
        return f"part of a Hugging Face folder: it {config_missing(path)}"
    return (
        f"not a model folder: it has no {MANIFEST_NAME}. Give the folder that `agentkv export` wrote, that of a "
        "Hugging Face model, or a GGUF file"
    )


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size
