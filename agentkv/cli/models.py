"""The commands about models that are kept on this machine: pull one, remove one."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer
from agentkv_runtime.backends import PROGRAM_BACKENDS
from agentkv_runtime.folder.manifest import MANIFEST_NAME, DType, Quantization, WeightRecipe, read_manifest

from .._console.console import escaped, fail, reporting, stdout
from .._console.progress import displayed
from .._types.show import bytes_text
from .pull import STOPPED, pull_file
from .weights import loss_text, size_text

if TYPE_CHECKING:
    ProgramBackend: TypeAlias = str
else:  # what typer lets through
    ProgramBackend = Literal[tuple(PROGRAM_BACKENDS)]


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A short name, as qwen3:0.6b (`agentkv list`), or a model on the Hugging Face hub: OWNER/MODEL, or"
            " OWNER/MODEL/FILE.gguf for a GGUF file.",
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
    recipe: Annotated[
        WeightRecipe | None,
        typer.Option(help="With q4 to q8: which weights get more bits, as of export; measured needs torch."),
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
    """Download a model from the Hugging Face hub, so that `Context.open(NAME)` opens it.

    A GGUF file is opened as it is; other models are exported, which needs no torch for the families that people run
    most, and so are GGUF files with options, which does. The token for private models is HF_TOKEN, or that of
    `hf auth login`. What was downloaded before is not downloaded again, and works offline. The download stays in the
    hub's own cache (HF_HOME), an export in AGENTKV_HOME.
    """
    from agentkv_runtime.store.making import options_for
    from agentkv_runtime.store.names import named_on_hub
    from agentkv_runtime.store.pulling import pull

    with reporting():
        asked, called = named_on_hub(name, revision)
    as_it_is = quant in (None, "file") and backend == "cpu" and not any((dtype, max_context, adapter, recipe))
    if asked.file is not None and as_it_is:
        _tell_of_file(called, pull_file(asked))
        return
    with displayed(STOPPED) as display:
        entry = pull(
            asked,
            called,
            options_for(backend, quant, dtype, max_context, adapter is None and asked.file is not None, recipe),
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


def _tell_of_file(called: str, path: Path) -> None:
    shown = escaped(shlex.quote(called))
    stdout.print(
        f"Pulled {escaped(called)} ({bytes_text(path.stat().st_size)}). Talk to it with: agentkv chat {shown}",
        soft_wrap=True,
        highlight=False,
    )


def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `agentkv list` shows it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
) -> None:
    """Remove every export of a model, and its GGUF file. What else was downloaded stays in the hub's own cache."""
    from agentkv_runtime.errors import StoreError
    from agentkv_runtime.folder.printable import path_text
    from agentkv_runtime.store.entries import named, remove
    from agentkv_runtime.store.found.hub_cache import remove_cached
    from agentkv_runtime.store.found.stores import is_stored
    from agentkv_runtime.store.names import canonical, file_called

    with reporting():
        name = canonical(name)
        if not named(name) and os.path.lexists(name):
            name = path_text(Path(name).resolve())  # exports of folders go by their whole path
        found = named(name)
        file = None if is_stored(name) else file_called(name)
        if name == "nano" and not found:
            fail("nano is part of agentkv itself, so there is nothing to remove")
        if not found and file is None:
            raise StoreError(f"no model is called {name}. See what there is with: agentkv list")
        size = sum(entry.size for entry in found if len(entry.names) == 1) + (file.stat().st_size if file else 0)
        others = sorted({other for entry in found for other in entry.names} - {name})
        try:
            what = f"what was made of {escaped(name)}" if os.path.isfile(name) else escaped(name)
            stays = "; the file itself stays" if os.path.isfile(name) else ""
            if not yes and not typer.confirm(f"Remove {what} ({bytes_text(size)}{stays})?", err=True):
                raise typer.Exit(1)
        except typer.Abort:
            fail(f"nobody answered, so nothing was removed. Without a question: agentkv rm {shlex.quote(name)} --yes")
        remove(name)
        if file is not None:
            remove_cached(file)
    stays = f" What it shares with {', '.join(map(escaped, others))} stays." if others else ""
    stdout.print(f"Removed {escaped(name)} ({bytes_text(size)}).{stays}", soft_wrap=True, highlight=False)
