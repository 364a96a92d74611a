"""Downloading a GGUF file of the hub, shown while it comes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .._console.console import escaped
from .._console.progress import displayed
from .._types.show import bytes_text

if TYPE_CHECKING:
    from agentkv_runtime.store.hub import Name

STOPPED = "stopped; whole files stay for the next pull, and nothing else was written"


def pull_file(name: Name) -> Path:
    """Downloads it where it is not here yet. Leaves with one line and a status where it cannot."""
    from agentkv_runtime.store.pulling import pull_file

    with displayed(STOPPED) as display:
        return pull_file(name, received=display.received, note=display.note)


def offer(model: str) -> None:
    """Asks whether to download a model with a short name that is not here, and does. Leaves with status 1 without."""
    from agentkv_runtime.store.catalogue import listed
    from agentkv_runtime.store.entries import named
    from agentkv_runtime.store.names import file_called

    known = listed(model)
    if known is None or named(known.name) or file_called(model) is not None:
        return
    question = f"{known.name} is not here. Download {bytes_text(known.size)} ({escaped(known.licence)})?"
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)
    pull_file(known.source)
