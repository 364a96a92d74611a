"""LM Studio's models: `<publisher>/<repository>/<file>.gguf`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentkv_runtime.store.found.files import gguf_models, home_folder, listed_folder
from agentkv_runtime.store.found.model import Found, Unusable

__all__ = ["LMStudio"]

_FOLDERS = (".lmstudio/models", ".cache/lm-studio/models")  # now, and before version 0.3.6
_LEVELS = 2  # of folders above a file: no link leads further down


class LMStudio:
    """LM Studio's folder. Models are named `publisher/repository/file.gguf`."""

    program = "LM Studio"
    default_tag = ""

    def models(self) -> Iterator[Found | Unusable]:
        """Yields one model per GGUF file, or per set of parts."""
        home = home_folder()
        if home is not None:
            for folder in _FOLDERS:
                yield from _below(home / folder, ())


def _below(folder: Path, above: tuple[str, ...]) -> Iterator[Found | Unusable]:
    paths = []
    for path in listed_folder(folder, must=not above):
        if isinstance(path, Unusable):
            yield path
        else:
            paths.append(path)
    if len(above) == _LEVELS:
        yield from gguf_models(paths, "".join(f"{name}/" for name in above))
        return
    for path in paths:
        if not path.name.startswith("."):
            yield from _below(path, (*above, path.name))
