"""The kinds of sources that a model is exported from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["described", "is_gguf", "load_source"]


def is_gguf(path: Path) -> bool:
    """Whether a path is a file that is called a GGUF file."""
    return path.suffix == ".gguf" and path.is_file()


@contextmanager
def described(src: Path) -> Iterator[Path]:
    """A folder with the config and the tokenizer of a model: its own, or one for the block. Raises ExportError."""
    if not is_gguf(src):
        yield src
        return
    from agentkv_runtime.sources.gguf_description import write_description

    with TemporaryDirectory(prefix="agentkv-gguf-") as folder:
        write_description(src, Path(folder))
        yield Path(folder)


def load_source(src: Path, folder: Path, adapter: Path | None) -> PreTrainedModel:
    """The model in `src`, described by `folder`, with the adapter merged into its weights. Raises ExportError."""
    from agentkv_runtime.hf.load import load_model

    if is_gguf(src):
        from agentkv_runtime.sources.gguf import load_gguf

        model = load_gguf(src, folder)
    else:
        model = load_model(src)
    if adapter is not None:
        from agentkv_runtime.sources.lora import merge_adapter

        merge_adapter(model, adapter)
    return model
