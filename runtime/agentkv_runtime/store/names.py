"""What a name of a model means, be it a short one, one of the hub, or one in another program's store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agentkv_runtime.errors import PullError
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.store.catalogue import catalogue, listed, nearest
from agentkv_runtime.store.found.hub_cache import HubCache, cached_file
from agentkv_runtime.store.found.model import Found
from agentkv_runtime.store.found.stores import find_stored, is_stored
from agentkv_runtime.store.hub import Name, parse_name

__all__ = ["cached_models", "canonical", "did_you_mean", "file_called", "named_on_hub"]


def named_on_hub(text: str, revision: str | None = None) -> tuple[Name, str]:
    """What a name asks of the hub, and what the model is called. Raises PullError for what is no name on it."""
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
    """A short name as what is pulled under it is called, `qwen3:4b` of `qwen3`; all others as they are."""
    if listed(text.partition("@")[0]) is not None:
        with suppress(PullError):
            return named_on_hub(text)[1]
    return text


def file_called(text: str) -> Path | None:
    """The file of a short name, of OWNER/MODEL/FILE.gguf, or of a name in another program's store; None for what is not
    here. Raises StoreError where the store does not have it."""
    if is_stored(text):
        return find_stored(text)
    try:
        name, _ = named_on_hub(text)
    except PullError:
        return None
    return cached_file(name)


def cached_models() -> Iterator[tuple[str, Found]]:
    """The GGUF files that were downloaded from the hub, under the shortest names that open them."""
    short = {str(model.source): model.name for model in catalogue()}
    for found in HubCache().models():
        if isinstance(found, Found) and found.path.suffix.lower() == ".gguf":
            yield short.get(found.name, found.name), found


def did_you_mean(text: str) -> str:
    """Where to look for the name that was meant."""
    near = nearest(text)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}`agentkv list --available` shows the short names"
