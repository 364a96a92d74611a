"""The architectures of GGUF files, each tried against transformers; one is a row of the tables here."""

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
"""By llama.cpp's names."""


def describe(file: GGUFFile) -> Description:
    """The model in a file, as transformers would have it. No weight is read.

    Raises UnsupportedModelError for what is not known, GGUFError for a file that contradicts itself.
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
