"""Telling the kinds of sources of an export apart, and loading each."""

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
    """Whether a path is a file whose suffix or first bytes are those of GGUF. Raises OSError for an unreadable file."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


@dataclass(frozen=True)
class Described:
    """The folder with a model's config and tokenizer, and the objects that they were written from."""

    folder: Path
    gguf: Description | None = None
    """The description of a GGUF file; None for other sources."""
    library: Tokenizer | None = None
    """The tokenizer of a GGUF file, from which `folder`'s tokenizer was written; None for other sources."""


@contextmanager
def described(src: Path) -> Iterator[Described]:
    """Yields the folder of a model's config and tokenizer: `src`, or a temporary one. Raises ExportError."""
    if not is_gguf(src) and not _is_vision_language(src):
        yield Described(src)
        return
    with staged(Path(gettempdir()) / "agentkv-source") as folder:  # sweeps what killed processes left
        yield _write_description(src, folder)


def _is_vision_language(src: Path) -> bool:
    return {"text_config", "vision_config"} <= read_object(src / "config.json", ExportError).keys()


def _write_description(src: Path, folder: Path) -> Described:
    """Writes config and tokenizer of a GGUF file, or of the language model in a vision-language one, to `folder`.

    Raises ExportError.
    """
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
    """Loads the model in `src`, described by `folder`, and merges the adapter into its weights. Raises ExportError."""
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
