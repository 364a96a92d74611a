"""The commands about models that are kept on this machine: pull one, list them, remove one."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from agentkv_runtime.backends import PROGRAM_BACKENDS
from agentkv_runtime.manifest import MANIFEST_NAME, DType, Quantization, read_manifest
from rich.table import Table

from ._console import bytes_text, escaped, fail, reporting, stdout
from ._progress import displayed
from ._weights import loss_text, size_text

if TYPE_CHECKING:
    ProgramBackend: TypeAlias = str
else:  # what typer lets through
    ProgramBackend = Literal[tuple(PROGRAM_BACKENDS)]


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A model on the Hugging Face hub: OWNER/MODEL, or OWNER/MODEL/FILE.gguf for a GGUF file.",
        ),
    ],
    revision: Annotated[str | None, typer.Option(help="A branch, a tag or a commit; also as NAME@REVISION.")] = None,
    backend: Annotated[ProgramBackend, typer.Option(help="What will run it: cpu, or mlx (Apple silicon).")] = "cpu",
    quant: Annotated[
        Quantization | None,
        typer.Option(
            help="Weights, as of export; without it a GGUF file's own blocks and else q4 on cpu, affine4 on mlx."
        ),
    ] = None,
    dtype: Annotated[
        DType | None, typer.Option(help="Activations and other weights; without it fp32 on cpu, fp16 on mlx.")
    ] = None,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Positions that a history has at most, as of export.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of a LoRA adapter (peft), merged into the weights.")
    ] = None,
) -> None:
    """Download a model from the Hugging Face hub and export it, so that `Context.open(NAME)` opens it. Needs torch.

    The token for private models is HF_TOKEN, or that of `hf auth login`. What was downloaded before is not downloaded
    again, and works offline. The download stays in the hub's own cache (HF_HOME), the export in AGENTKV_HOME.
    """
    from agentkv_runtime.store.hub import parse_name
    from agentkv_runtime.store.making import options_for
    from agentkv_runtime.store.pulling import pull

    with displayed("stopped; whole files stay for the next pull, and nothing else was written") as display:
        asked = parse_name(name, revision)
        entry = pull(
            asked,
            options_for(backend, quant, dtype, max_context, own_bits=adapter is None and asked.file is not None),
            adapter,
            received=display.received,
            progress=display.tell,
            done=display.done,
            note=display.note,
        )
    facts = read_manifest(entry.path / MANIFEST_NAME)
    called = max(entry.names, key=lambda known: entry.names[known])
    stdout.print(
        f"Pulled {escaped(called)} ({escaped(entry.options)}, {size_text(facts)}). "
        f"Open it with: kv.Context.open({escaped(repr(called))})",
        soft_wrap=True,
        highlight=False,
    )
    if (loss := loss_text(facts)) is not None:
        shown = escaped(shlex.quote(called))
        stdout.print(f"{loss} Measure what that means: agentkv inspect {shown} --quality", soft_wrap=True)


def list_models() -> None:
    """List the models that were pulled, or exported when they were first opened."""
    from agentkv_runtime.store.entries import entries
    from agentkv_runtime.store.home import home

    with reporting():
        found = [(entry, entry.size, entry.used) for entry in entries()]
    if not found:
        stdout.print(f"No models in {escaped(home())} yet. Get one with: agentkv pull OWNER/MODEL", soft_wrap=True)
        return
    table = Table(box=None, header_style="bold")
    for title in ("name", "size", "options", "commit", "used"):
        table.add_column(title, overflow="fold", justify="right" if title == "size" else "left")
    for entry, size, used in found:
        for name in entry.names:
            table.add_row(
                escaped(name), bytes_text(size), escaped(entry.options), escaped(entry.commit[:8]), _ago(used)
            )
    stdout.print(table)


def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `agentkv list` shows it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
) -> None:
    """Remove every export of a model. What was downloaded for it stays in the hub's own cache."""
    from agentkv_runtime.errors import StoreError
    from agentkv_runtime.store.entries import named, remove

    with reporting():
        if not named(name) and os.path.lexists(name):
            name = str(Path(name).resolve())  # exports of folders go by their whole path
        found = named(name)
        if not found:
            raise StoreError(f"no model is called {name}. See what there is with: agentkv list")
        size = sum(entry.size for entry in found if len(entry.names) == 1)
        others = sorted({other for entry in found for other in entry.names} - {name})
        try:
            if not yes and not typer.confirm(f"Remove {escaped(name)} ({bytes_text(size)})?", err=True):
                raise typer.Exit(1)
        except typer.Abort:
            fail(f"nobody answered, so nothing was removed. Without a question: agentkv rm {shlex.quote(name)} --yes")
        remove(name)
    stays = f" What it shares with {', '.join(map(escaped, others))} stays." if others else ""
    stdout.print(f"Removed {escaped(name)} ({bytes_text(size)}).{stays}", soft_wrap=True, highlight=False)


def _ago(then: float) -> str:
    seconds = max(0.0, time.time() - then)
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
