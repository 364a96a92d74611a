"""`agentkv list`: the models that are here, those that short names get, and those of other programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from .._console.console import ago_text, escaped, print_table, reporting, stdout
from .._types.show import bytes_text

if TYPE_CHECKING:
    from agentkv_runtime.store.entries import Entry, Options


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

    exports = [(name, entry) for entry in entries() for name in entry.names]
    alike = Counter((name, entry.options) for name, entry in exports)
    rows = [
        (name, bytes_text(entry.size), _options(entry, name, alike), entry.commit[:8], ago_text(entry.used))
        for name, entry in exports
    ]
    rows += [
        (name, bytes_text(model.size), "a GGUF file, as it is", _commit(model.path.parts), "")
        for name, model in cached_models()
    ]
    if not rows:
        stdout.print(f"No models in {escaped(home())} yet. Get one with: agentkv pull NAME", soft_wrap=True)
    else:
        print_table("", ("name", "size", "options", "commit", "used"), rows, words=("options", "commit", "used"))
    return [row[0] for row in rows]


def _print_available(here: list[str]) -> None:
    from agentkv_runtime.store.catalogue import POSITIONS, catalogue

    rows = [
        (
            f"{model.name} (usual)" if model.usual else model.name,
            bytes_text(model.size),
            bytes_text(model.memory),
            model.licence,
            model.tools,
        )
        for model in catalogue()
        if model.name not in here
    ]
    if here:
        stdout.print()
    print_table("", ("agentkv pull", "size", "memory", "licence", "tools"), rows, words=("licence", "tools"))
    stdout.print(
        f"memory: the file and {POSITIONS} positions of fp16. tools: whether it calls them, as measured. "
        "usual: what the family's name alone means.",
        style="dim",
        soft_wrap=True,
    )


def _print_found() -> None:
    rows: list[tuple[str, str]] = []
    complaints = []
    for name, size, why in _found():
        if why:
            complaints.append(f"{name}: {why}")
        else:
            rows.append((name, bytes_text(size)))
    if rows:
        print_table("", ("name", "size"), rows)
        stdout.print("Used where they lie: agentkv chat NAME, kv.Context.open(NAME)", style="dim", soft_wrap=True)
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


def _options(entry: Entry, name: str, alike: Mapping[tuple[str, Options], int]) -> str:
    """The options of an export; of several alike, as of a file that changed, also when this one was made."""
    if alike[name, entry.options] == 1:
        return str(entry.options)
    return f"{entry.options}, made {datetime.fromtimestamp(entry.names[name]):%Y-%m-%d %H:%M:%S}"


def _commit(parts: tuple[str, ...]) -> str:
    """That of a file in the cache of the hub."""
    return parts[parts.index("snapshots") + 1][:8] if "snapshots" in parts else ""
