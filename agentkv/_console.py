"""Where commands print, and how they refuse."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

stdout = Console()
stderr = Console(stderr=True)


def fail(message: object) -> NoReturn:
    """Prints an error and leaves with status 1."""
    stderr.print(f"[bold red]error:[/] {escaped(message)}", soft_wrap=True)
    raise typer.Exit(1)


def escaped(text: object) -> str:
    """Text that rich prints as it is."""
    return str(text).replace("[", r"\[")
