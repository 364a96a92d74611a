"""Searching folders of other programs for GGUF models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentkv_runtime.errors import StoreError
from agentkv_runtime.folder.small_files import open_regular
from agentkv_runtime.gguf.parts import part_paths
from agentkv_runtime.store.found.model import Found, Unusable

__all__ = ["folder_of", "gguf_models", "home_folder", "listed_folder", "measured"]

_MAGIC = b"GGUF"
_NO_MODEL = ("mmproj", "imatrix")  # beginnings of what lies beside models: projectors of images, statistics


def home_folder() -> Path | None:
    """The user's home folder; None if it cannot be determined."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def folder_of(variable: str, *default: str) -> Path | None:
    """The folder that an environment variable names, or else `default` below the user's home; None without a home."""
    if chosen := os.environ.get(variable):
        return Path(os.path.expanduser(chosen))
    home = home_folder()
    return home.joinpath(*default) if home else None


def listed_folder(folder: Path, *, must: bool = True) -> Iterator[Path | Unusable]:
    """Yields the entries of a folder, sorted; none for a missing folder.

    A path that cannot be listed yields an Unusable; with `must=False` a file in the folder's place yields nothing.
    """
    try:
        yield from sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        if must or not isinstance(error, NotADirectoryError):
            yield Unusable(str(folder), error.strerror or type(error).__name__)


def gguf_models(files: Iterable[Path], prefix: str = "") -> Iterator[Found | Unusable]:
    """Yields the models among files of one folder, one for all parts of a model. `prefix` begins their names."""
    named = {path.name: path for path in files if _may_be_model(path.name)}
    for name, path in named.items():
        names = [part.name for part in part_paths(path)]
        here = [one for one in names if one in named]
        if name != here[0]:
            continue
        if missing := len(names) - len(here):
            yield Unusable(prefix + names[0], f"{missing} of its {len(names)} parts are missing")
        else:
            yield measured(prefix + name, [named[one] for one in names])


def measured(name: str, parts: list[Path]) -> Found | Unusable:
    """The model of these files with their total size; Unusable if one is unreadable or does not begin as GGUF."""
    size = 0
    for path in parts:
        try:
            with open_regular(path, StoreError) as file:
                if file.read(len(_MAGIC)) != _MAGIC:
                    return Unusable(name, "it does not begin as a GGUF file")
                size += os.fstat(file.fileno()).st_size
        except StoreError as error:
            return Unusable(name, "its file " + str(error).removeprefix(f"{path}: "))
    return Found(name, parts[0], size)


def _may_be_model(name: str) -> bool:
    return name.lower().endswith(".gguf") and not name.lower().startswith(_NO_MODEL)
