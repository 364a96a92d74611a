"""`agentkv view`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .._console.console import escaped, reporting, stderr, stdout, write_file
from .._types.show import bytes_text


def view(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Trace that `agentkv.trace.record` wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to write; by default beside the trace.")
    ] = None,
    perfetto: Annotated[bool, typer.Option("--perfetto", help="Write Perfetto's format instead of a page.")] = False,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Write a page that shows a trace, and open it: one file, which needs nothing else."""
    target = out or Path(f"{path}{'.pftrace' if perfetto else '.html'}")
    columns = (TextColumn("reading"), BarColumn(), TimeElapsedColumn())
    with reporting(), Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        if perfetto:
            from ..trace.perfetto import perfetto_of

            content = perfetto_of(path)
        else:
            from ..trace.view.page import page_of

            content = page_of(path, lambda part: bar.update(task, completed=part)).encode()
        write_file(target, content)
    stdout.print(f"Wrote {escaped(target)} ({bytes_text(len(content))})", soft_wrap=True)
    if show and not perfetto and not webbrowser.open(target.resolve().as_uri()):
        stdout.print("No browser could be opened: open the file in one.")
