"""Entries of the store of exported models: their files, names, and times of use.

    home()/models/<key>/entry.json      the Entry
    home()/models/<key>/<folder>/       the model folder

An entry appears whole, by renaming, and goes the same way.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agentkv_runtime.errors import ModelFolderError, StoreError
from agentkv_runtime.folder.fresh_file import put_in_place
from agentkv_runtime.folder.manifest import DType, Quantization, WeightRecipe
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import read_text
from agentkv_runtime.folder.staging import PREFIX
from agentkv_runtime.store.home import home, locked

__all__ = [
    "ENTRY_NAME",
    "Entry",
    "Options",
    "clear",
    "entries",
    "entry_at",
    "find",
    "models_folder",
    "named",
    "remove",
]

ENTRY_NAME = "entry.json"


class Options(BaseModel):
    """Options of an export. Equal options and equal files make the same entry."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    backend: str
    quant: Quantization
    dtype: DType
    max_context: int | None = None
    recipe: WeightRecipe | None = None

    def __str__(self) -> str:
        context = f", {self.max_context} positions" if self.max_context else ""
        recipe = f", {self.recipe} recipe" if self.recipe else ""
        return f"{self.backend}, {self.quant}, {self.dtype}{recipe}{context}"


class Entry(BaseModel):
    """One exported model."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    key: str
    folder: str
    options: Options
    names: dict[str, float]
    """Names, each with the time of the last pull or export under it, in seconds since 1970."""
    commit: str = ""
    """Commit of the hub's repository; empty for exports of a folder."""
    adapter: str = ""
    """Digest of the merged adapter; empty without one."""

    @property
    def place(self) -> Path:
        """Folder of the entry, with `entry.json` and the model folder."""
        return models_folder() / self.key

    @property
    def path(self) -> Path:
        """The model folder."""
        return self.place / self.folder

    @property
    def whole(self) -> bool:
        """Whether the model folder is complete, without reading its large files."""
        try:
            read_model_folder(self.path)
        except ModelFolderError:
            return False
        return (self.path / "tokenizer.json").is_file()

    @property
    def size(self) -> int:
        """Bytes of the model folder's files."""
        with suppress(OSError):  # it may be removed at any moment
            return sum(path.stat().st_size for path in self.path.iterdir() if path.is_file())
        return 0

    @property
    def used(self) -> float:
        """Time of the last use or export, in seconds since 1970; 0 if the entry is gone."""
        with suppress(OSError):
            return (self.place / ENTRY_NAME).stat().st_mtime
        return 0.0

    def touch(self) -> None:
        """Sets `used` to now, unless the folder is read-only."""
        with suppress(OSError):  # a folder that is only to be read
            os.utime(self.place / ENTRY_NAME)

    def called(self, name: str, commit: str = "") -> Entry:
        """Writes and returns this entry with `name` as made now. Requires the entry's lock. Raises OSError."""
        names = {**self.names, name: time.time()}
        entry = self.model_copy(update={"names": names, "commit": commit or self.commit})
        entry.write(entry.place)
        return entry

    def write(self, place: Path) -> None:
        """Writes `entry.json` into the folder `place`. Raises OSError."""
        put_in_place(place / ENTRY_NAME, self.model_dump_json(indent=2).encode() + b"\n")


def models_folder() -> Path:
    """The folder with one folder per entry."""
    return home() / "models"


def entry_at(key: str) -> Entry | None:
    """The entry of a key; None if there is none that can be read."""
    path = models_folder() / key / ENTRY_NAME
    try:
        entry = Entry.model_validate_json(read_text(path, ModelFolderError))
    except (ModelFolderError, ValidationError):
        return None
    return entry if entry.key == key and entry.path.is_dir() else None


def entries() -> list[Entry]:
    """All entries, most recently used first. Raises StoreError for a store that cannot be read."""
    try:
        keys = [path.name for path in models_folder().iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{error.filename}: {error.strerror}. Set AGENTKV_HOME to another folder") from error
    found = [entry for key in keys if (entry := entry_at(key)) is not None]
    return sorted(found, key=lambda entry: entry.used, reverse=True)


def named(name: str) -> list[Entry]:
    """Entries that have this name. Raises StoreError."""
    return [entry for entry in entries() if name in entry.names]


def find(name: str, *, backend: str | None = None, quant: str | None = None) -> Entry | None:
    """The latest export under a name, of those with `backend` and `quant` where given; None for an unknown name.

    Raises StoreError if the name has only exports with other options.
    """
    found = named(name)
    fitting = [
        entry for entry in found if backend in (None, entry.options.backend) and quant in (None, entry.options.quant)
    ]
    if found and not fitting:
        asked = " ".join(f"--{key} {value}" for key, value in (("backend", backend), ("quant", quant)) if value)
        raise StoreError(
            f"{printable(name)} is here as {'; '.join(str(entry.options) for entry in found)}. Pull it as you want it: "
            f"agentkv pull {printable(name)} {asked}"
        )
    return max(fitting, key=lambda entry: entry.names[name], default=None)


def remove(name: str) -> None:
    """Removes a name, and the entries that have no other.

    Programs that have an entry open can go on using it. Raises StoreError and OSError.
    """
    for key in [entry.key for entry in named(name)]:
        with locked(key, lambda: None):
            entry = entry_at(key)  # as it is now
            if entry is None or name not in entry.names:
                continue
            others = {other: when for other, when in entry.names.items() if other != name}
            if others:
                entry.model_copy(update={"names": others}).write(entry.place)
                continue
            clear(key)


def clear(key: str) -> None:
    """Removes the folder (or file) at the place of a key, if there is one. Requires the key's lock. Raises OSError."""
    place = models_folder() / key
    if place.is_dir() and not place.is_symlink():
        gone = models_folder() / f"{PREFIX}{secrets.token_hex(8)}"  # an export sweeps it, beside this one or later
        place.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    elif os.path.lexists(place):
        place.unlink()
