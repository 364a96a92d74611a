"""Resolution of model names: short names, names on the hub, and names in other programs' stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from agentkv_runtime.errors import PullError
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.store.catalogue import catalogue, listed, nearest
from agentkv_runtime.store.entries import entries
from agentkv_runtime.store.found.hub_cache import HubCache, cached_file
from agentkv_runtime.store.found.model import Found
from agentkv_runtime.store.found.stores import find_stored, is_stored
from agentkv_runtime.store.hub import Name, parse_name

__all__ = ["cached_models", "canonical", "did_you_mean", "file_called", "named_on_hub", "suggesting"]


def named_on_hub(text: str, revision: str | None = None) -> tuple[Name, str]:
    """Resolves a short name or a hub name into a hub Name and the full name of the model.

    Raises PullError for a text that is neither.
    """
    short, at, behind = text.partition("@")
    model = listed(short)
    if model is not None and not (at and (revision or not behind)):
        revision = revision or behind or None
        return replace(model.source, revision=revision), model.name + (f"@{revision}" if revision else "")
    if is_stored(text):
        raise PullError(
            f"{printable(text)} is used where it lies, so there is nothing to pull: agentkv chat {printable(text)}"
        )
    if ":" in text:
        raise PullError(f"{printable(text)} is no short name. {did_you_mean(text)}")
    name = parse_name(text, revision)
    return name, str(name)


def canonical(text: str) -> str:
    """The full form of a short name, such as `qwen3:4b` for `qwen3`; other names unchanged."""
    if listed(text.partition("@")[0]) is not None:
        with suppress(PullError):
            return named_on_hub(text)[1]
    return text


def file_called(text: str) -> Path | None:
    """The local file of a short name, of OWNER/MODEL/FILE.gguf, or of a name in another program's store.

    None for a file that was not downloaded. Raises StoreError for a model that the store does not have.
    """
    if is_stored(text):
        return find_stored(text)
    try:
        name, _ = named_on_hub(text)
    except PullError:
        return None
    return cached_file(name)


def cached_models() -> Iterator[tuple[str, Found]]:
    """Yields GGUF files downloaded from the hub, with the shortest names that open them."""
    short = {str(model.source): model.name for model in catalogue()}
    for found in HubCache().models():
        if isinstance(found, Found) and found.path.suffix.lower() == ".gguf":
            yield short.get(found.name, found.name), found


@contextmanager
def suggesting(name: Name) -> Iterator[None]:
    """Adds the nearest names to a PullError of the block about a name without an owner.

    The hub knows some models by such names, so they are suspicious only once it does not.
    """
    try:
        yield
    except PullError as error:
        if "/" in name.repo:
            raise
        raise PullError(f"{error}. Most names on the hub are OWNER/MODEL. {did_you_mean(name.repo)}") from error


def did_you_mean(text: str) -> str:
    """A hint with the nearest names, short ones and those of models that are here, for error messages."""
    here = {name for entry in entries() for name in entry.names} | {name for name, _ in cached_models()}
    near = nearest(text, here)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}`agentkv list --available` shows the short names"
