"""The architectures of GGUF files, each compared with transformers in tests; each is a row of a table."""

from __future__ import annotations

from agentkv_runtime.errors import GGUFError, UnsupportedModelError
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.gguf.architectures.architecture import Description
from agentkv_runtime.gguf.architectures.dense import DENSE
from agentkv_runtime.gguf.architectures.mixtures import MIXTURES
from agentkv_runtime.gguf.architectures.older import OLDER
from agentkv_runtime.gguf.file import GGUFFile
from agentkv_runtime.gguf.keys import Keys

__all__ = ["ARCHITECTURES", "Description", "describe"]

ARCHITECTURES = {**DENSE, **OLDER, **MIXTURES}
"""Architectures by llama.cpp's names."""


def describe(file: GGUFFile) -> Description:
    """Describes a file's model as a transformers model, without reading weights.

    Raises UnsupportedModelError for unknown architectures, keys or tensors, GGUFError for an inconsistent file.
    """
    keys = Keys(file)
    if not isinstance(keys.architecture, str):
        raise GGUFError(f"{file.path}: general.architecture is missing or no text. Convert the model again")
    if keys.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path}: GGUF files of {printable(keys.architecture[:40])} are not read, only those of "
            f"{', '.join(sorted(ARCHITECTURES))}. Export the Hugging Face folder that it was made from"
        )
    if not keys.flag("attention.causal", True):
        keys.unsupported("attention is not causal")
    return ARCHITECTURES[keys.architecture](keys).describe(keys)
