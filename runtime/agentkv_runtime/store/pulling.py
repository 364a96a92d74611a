"""Pulling: from a name on the hub to a model folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from agentkv_runtime.export.folder import check_torch
from agentkv_runtime.export.progress import Done, Progress
from agentkv_runtime.store.entries import Entry, Options
from agentkv_runtime.store.home import locked
from agentkv_runtime.store.hub import Name, Received, download
from agentkv_runtime.store.making import export_once

__all__ = ["pull"]


def pull(
    name: Name,
    options: Options,
    adapter: Path | None,
    *,
    received: Received,
    progress: Progress,
    done: Done,
    note: Progress,
) -> Entry:
    """Downloads a model and exports it, both where it was not done before; `note` is told why somebody waits.

    Two processes that pull the same model share one download and one export. What is called `name` afterwards is
    this export; with an adapter the adapter's name is part of it.

    Raises PullError, ExportError and StoreError.
    """
    check_torch()
    called = f"{name}+{adapter.resolve().name}" if adapter else str(name)
    with locked(_lock_name(name), lambda: note("Another process downloads the same model: waiting for it.")):
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


def _lock_name(name: Name) -> str:
    return "pull-" + hashlib.sha256(str(name).encode()).hexdigest()[:32]
