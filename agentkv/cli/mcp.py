"""`agentkv mcp`: branches of a model as tools of an MCP server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._console.console import reporting
from .._types.extras import needs_extra
from .options import ThreadsOption


def mcp(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Model folder or GGUF file, or a name, as qwen3:0.6b; without: nano."),
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Listen there (streamable HTTP); without: stdin and stdout.")
    ] = None,
    capacity: Annotated[int, typer.Option(min=1, help="Cells of the cache: tokens of all branches.")] = 16384,
    most_branches: Annotated[int, typer.Option(min=1, help="Branches at one time.")] = 64,
    saves: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Let clients save and load branches in this folder.")
    ] = None,
    threads: ThreadsOption = None,
) -> None:
    """Serve branches as tools by the Model Context Protocol: forks, rollbacks and generations for agents elsewhere."""
    with reporting():
        with needs_extra("mcp"):
            import anyio

            from ..adapters.mcp.serving import serve_branches
        anyio.run(serve_branches, model, http, capacity, most_branches, saves, threads)
