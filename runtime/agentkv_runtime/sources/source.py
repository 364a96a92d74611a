"""The kinds of sources that a model is exported from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.small_files import read_object
from agentkv_runtime.folder.staging import staged

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

    from agentkv_runtime.gguf.architectures import Description

__all__ = ["Described", "described", "is_gguf", "load_source"]


_MAGIC = b"GGUF"


def is_gguf(path: Path) -> bool:
    """Whether a path is a file that is called a GGUF file, or begins as one. Raises OSError for one out of reach."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


@dataclass(frozen=True)
class Described:
    """Where a model's config and its tokenizer are."""

    folder: Path
    gguf: Description | None = None
    """Of a GGUF file."""
    library: Tokenizer | None = None
    """What its tokenizer was written from."""


@contextmanager
def described(src: Path) -> Iterator[Described]:
    """The folder of a model's config and tokenizer: its own, or one for the block. Raises ExportError."""
    if not is_gguf(src) and not _is_vision_language(src):
        yield Described(src)
        return
    with staged(Path(gettempdir()) / "agentkv-source") as folder:  # sweeps what killed processes left
        yield _write_description(src, folder)


def _is_vision_language(src: Path) -> bool:
    return {"text_config", "vision_config"} <= read_object(src / "config.json", ExportError).keys()


def _write_description(src: Path, folder: Path) -> Described:
    """What a GGUF file, or a language model within another, is described by."""
    if is_gguf(src):
        from agentkv_runtime.gguf.description import write_description

        return Described(folder, *write_description(src, folder))
    try:
        from agentkv_runtime.sources.text_tower import write_tower_description
    except ImportError as error:
        raise ExportError(
            f"export needs torch and executorch, and {error.name or error} is not installed: "
            "pip install torch==2.13.0, then pip install 'agentkv-sdk[export]'"
        ) from error
    return Described(folder if write_tower_description(src, folder) else src)


def load_source(src: Path, folder: Path, adapter: Path | None) -> PreTrainedModel:
    """The model in `src`, described by `folder`, with the adapter merged into its weights. Raises ExportError."""
    from agentkv_runtime.hf.load import load_model

    if is_gguf(src):
        from agentkv_runtime.sources.gguf import load_gguf

        model = load_gguf(src, folder)
    elif folder != src:
        from agentkv_runtime.sources.text_tower import load_text_tower

        model = load_text_tower(src, folder)
    else:
        model = load_model(src)
    if adapter is not None:
        from agentkv_runtime.sources.lora import merge_adapter

        merge_adapter(model, adapter)
    return model
