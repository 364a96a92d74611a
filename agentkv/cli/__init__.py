"""The `agentkv` command, one file per subcommand."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from .._console.console import stdout
from . import bench, chat, doctor, export, inspect, mcp, models, replay, runs, serve, view
from .eval import evaluation
from .list import list_models

app = typer.Typer(
    help="Agents on forked KV-cache branches, on your own model and machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


app.add_typer(bench.bench, name="bench")
app.add_typer(evaluation, name="eval")
app.command()(models.pull)
app.command("list")(list_models)
app.command()(models.rm)
app.command()(serve.serve)
app.command()(chat.chat)
app.command()(mcp.mcp)
app.command()(doctor.doctor)
app.command()(inspect.inspect)
app.command()(view.view)
app.command()(replay.replay)
app.add_typer(runs.runs, name="runs")
app.command()(export.export)
app.command("export-draft")(export.export_draft)


def _print_version(asked: bool) -> None:
    if not asked:
        return
    try:
        version = importlib.metadata.version("agentkv-sdk")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed)"
    stdout.print(f"agentkv {version}", highlight=False)
    raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Agents on forked KV-cache branches, on your own model and machine."""
