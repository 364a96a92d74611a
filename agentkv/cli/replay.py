"""`agentkv replay`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .._console.console import escaped, fail, reporting, stderr, stdout

if TYPE_CHECKING:
    from ..trace.replayed import Replayed

MOST_SHOWN = 10  # differences


def replay(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Trace that `agentkv.trace.record` wrote.")],
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The model, where it is not where it was recorded.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=RESULT",
            help="Another result of a call, named CALL or TURN:CALL, such as 3:call00000='{\"count\": 0}': its branch "
            "and what was forked from it go on from there. May be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a trace again, and say where it differs from what was recorded.

    Status 0 where nothing differs, 3 where something does.
    """
    import anyio

    from ..trace.replaying import replay as run

    changes = [_change(given) for given in what_if or []]
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with reporting(), Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("", total=None)

        async def replayed() -> Replayed:
            return await run(
                path,
                model,
                what_if=changes,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )

        result = anyio.run(replayed)
    if as_json:
        typer.echo(json.dumps({**asdict(result), "same": result.same}, indent=1))
    else:
        _print(result)
    raise typer.Exit(0 if result.same else 3)


def _change(given: str) -> tuple[str, str]:
    call, equals, result = given.partition("=")
    if not equals:
        fail(f"--what-if {given!r} says no result; write CALL=RESULT, as in 3:call00000='{{\"count\": 0}}'")
    return call, result


def _print(result: Replayed) -> None:
    compared = f"{result.digests:,} digests of logits" if result.compares == "digests" else "tokens alone"
    stdout.print(
        f"{result.generations:,} generations with {result.tokens:,} tokens ran again, compared by {compared}",
        highlight=False,
    )
    if result.why:
        stdout.print(escaped(f"Only tokens were compared: {result.why}."), highlight=False)
    for reason in result.left_out:
        stdout.print(escaped(f"Left out: {reason}."), highlight=False)
    if result.same:
        stdout.print("[green]Nothing differs.[/]")
    for difference in result.differences[:MOST_SHOWN]:
        stdout.print(f"[red]differs[/] {escaped(str(difference))}", highlight=False)
    if len(result.differences) > MOST_SHOWN:
        stdout.print(f"... and {len(result.differences) - MOST_SHOWN} more differences")
    for changed in result.changed:
        stdout.print(f"\n[bold]branch {changed.branch}[/], from the changed result on", highlight=False)
        stdout.print(f"[dim]recorded:[/] {escaped(changed.recorded)}", highlight=False)
        stdout.print(f"[dim]now:[/]      {escaped(changed.now)}", highlight=False)
        if changed.stopped:
            stdout.print(f"[yellow]It stops there:[/] {escaped(changed.stopped)}.", highlight=False)
