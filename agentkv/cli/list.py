"""`agentkv list`: the models that are here, those that short names get, and those of other programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.table import Table

from .._console.console import bytes_text, escaped, reporting, stdout


def list_models(
    available: Annotated[
        bool, typer.Option("--available", help="Only the short names: what `agentkv pull` gets, and what it takes.")
    ] = False,
    found: Annotated[
        bool,
        typer.Option("--found", help="Only what Ollama, LM Studio, llama.cpp and Hugging Face's cache have here."),
    ] = False,
) -> None:
    """List the models that are here, and the short names of others."""
    with reporting():
        if found:
            _print_found()
        if available or not found:
            here = [] if available else _print_here()
            _print_available(here)


def _print_here() -> list[str]:
    """Prints what opens by its name; returns the names."""
    from agentkv_runtime.store.entries import entries
    from agentkv_runtime.store.home import home
    from agentkv_runtime.store.names import cached_models

    rows = [
        (name, bytes_text(entry.size), str(entry.options), entry.commit[:8], _ago(entry.used))
        for entry in entries()
        for name in entry.names
    ]
    rows += [
        (name, bytes_text(model.size), "a GGUF file, as it is", _commit(model.path.parts), "")
        for name, model in cached_models()
    ]
    if not rows:
        stdout.print(f"No models in {escaped(home())} yet. Get one with: agentkv pull NAME", soft_wrap=True)
    else:
        table = _table("name", "size", "options", "commit", "used")
        for row in rows:
            table.add_row(*map(escaped, row))
        stdout.print(table)
    return [row[0] for row in rows]


def _print_available(here: list[str]) -> None:
    from agentkv_runtime.store.catalogue import POSITIONS, catalogue

    table = _table("agentkv pull", "size", "memory", "licence", "tools")
    for model in catalogue():
        if model.name not in here:
            name = f"{model.name} (usual)" if model.usual else model.name
            table.add_row(name, bytes_text(model.size), bytes_text(model.memory), model.licence, model.tools)
    if here:
        stdout.print()
    stdout.print(table)
    stdout.print(
        f"memory: the file and {POSITIONS} positions of fp16. tools: whether it calls them, as measured. "
        "usual: what the family's name alone means.",
        style="dim",
    )


def _print_found() -> None:
    table = _table("name", "size")
    complaints = []
    for name, size, why in _found():
        if why:
            complaints.append(f"{name}: {why}")
        else:
            table.add_row(escaped(name), bytes_text(size))
    if table.row_count:
        stdout.print(table)
        stdout.print("Used where they lie: agentkv chat NAME, kv.Context.open(NAME)", style="dim")
    else:
        stdout.print("No models of other programs were found.")
    for line in complaints:
        stdout.print(f"not usable: {escaped(line)}", soft_wrap=True, highlight=False)


def _found() -> Iterator[tuple[str, int, str]]:
    from agentkv_runtime.store.found.model import Found
    from agentkv_runtime.store.found.stores import STORES

    for prefix, store in STORES.items():
        for model in store.models():
            size, why = (model.size, "") if isinstance(model, Found) else (0, model.why)
            yield f"{prefix}:{model.name}", size, why


def _table(*titles: str) -> Table:
    table = Table(box=None, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold", justify="right" if title in ("size", "memory") else "left")
    return table


def _commit(parts: tuple[str, ...]) -> str:
    """That of a file in the cache of the hub."""
    return parts[parts.index("snapshots") + 1][:8] if "snapshots" in parts else ""


def _ago(then: float) -> str:
    seconds = max(0.0, time.time() - then)
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
