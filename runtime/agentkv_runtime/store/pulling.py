"""Pulling: downloads a model of the hub and exports it to a model folder."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export.checks import check_torch
from agentkv_runtime.export.choices import OWN_BLOCKS
from agentkv_runtime.export.progress import Done, Progress
from agentkv_runtime.hf.plain_config import plain_config
from agentkv_runtime.store.content import content_digest
from agentkv_runtime.store.entries import Entry, Options, named
from agentkv_runtime.store.home import locked
from agentkv_runtime.store.hub import Name, Received, download, download_words
from agentkv_runtime.store.making import check_store, export_once
from agentkv_runtime.store.names import suggesting

__all__ = ["name_with_adapter", "pull", "pull_file"]


def pull_file(name: Name, *, received: Received, note: Progress) -> Path:
    """Downloads a GGUF file, which needs no export; `note` gets the reason for a wait. Needs no torch.

    Raises PullError and StoreError.
    """
    with locked(_lock_name(name), lambda: note("Another process downloads the same model: waiting for it.")):
        return download(name, received).path


def pull(
    name: Name,
    called: str,
    options: Options,
    adapter: Path | None,
    *,
    received: Received,
    progress: Progress,
    done: Done,
    note: Progress,
) -> Entry:
    """Downloads and exports a model, each unless already done; `note` gets the reason for a wait.

    Two processes that pull the same model share one download and one export. The name `called` then stands for this
    export; an adapter adds its own name, see `name_with_adapter`.

    Raises PullError, ExportError and StoreError.
    """
    check_store()
    if adapter:
        called = name_with_adapter(called, adapter)
    wait = partial(note, "Another process downloads the same model: waiting for it.")
    with locked(_lock_name(name), wait), suggesting(name):
        _check_torch(name, options, adapter, received)
        snapshot = download(name, received)
    return export_once(
        snapshot.path,
        called,
        options,
        adapter=adapter,
        commit=snapshot.commit,
        progress=progress,
        done=done,
        note=note,
    )


def _check_torch(name: Name, options: Options, adapter: Path | None, received: Received) -> None:
    """Raises ExportError, before the download, if torch is not installed and the export needs it."""
    try:
        check_torch()
    except ExportError as error:
        asks = name.file or adapter or options.backend != "cpu" or options.recipe == "measured"
        if asks or options.quant not in OWN_BLOCKS:
            raise
        try:
            plain_config(download_words(name, received).path)
        except UnsupportedModelError as unsupported:
            raise ExportError(f"{name}: {unsupported}. {error}") from unsupported


def name_with_adapter(name: str, adapter: Path) -> str:
    """Name of a model with an adapter merged into it: `name+FOLDER`, FOLDER being the name of the adapter's folder.

    If another adapter has that name, the first 8 digits of this one's digest follow. Raises ExportError for a file that
    cannot be read.
    """
    called, digest = f"{name}+{adapter.resolve().name}", content_digest(adapter) or ""
    taken = any(entry.adapter != digest for entry in named(called))
    return f"{called}-{digest[:8]}" if taken else called


def _lock_name(name: Name) -> str:
    return "pull-" + hashlib.sha256(str(name).encode()).hexdigest()[:32]
