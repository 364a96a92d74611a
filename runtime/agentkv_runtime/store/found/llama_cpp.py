"""Models that llama.cpp downloaded into its own folder. Newer versions use the hub's cache instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from agentkv_runtime.store.found.files import folder_of, gguf_models, listed_folder
from agentkv_runtime.store.found.model import Found, Unusable

__all__ = ["LlamaCpp"]


class LlamaCpp:
    """llama.cpp's download folder. Models have its own names, `owner_repository_file.gguf`."""

    program = "llama.cpp"
    default_tag = ""

    def models(self) -> Iterator[Found | Unusable]:
        """Yields one model per GGUF file, or per set of parts."""
        folder = _folder()
        paths = list(listed_folder(folder)) if folder else []
        yield from (path for path in paths if isinstance(path, Unusable))
        yield from gguf_models(path for path in paths if isinstance(path, Path))


def _folder() -> Path | None:
    if sys.platform == "darwin":
        return folder_of("LLAMA_CACHE", "Library", "Caches", "llama.cpp")
    caches = os.environ.get("XDG_CACHE_HOME")
    if caches and not os.environ.get("LLAMA_CACHE"):
        return Path(caches) / "llama.cpp"
    return folder_of("LLAMA_CACHE", ".cache", "llama.cpp")
