"""`agentkv eval ...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .._console import escaped, print_table, reporting, stderr, stdout

if TYPE_CHECKING:
    from .cases import Case
    from .run import Result

evaluation = typer.Typer(help="Evaluate a model.", no_args_is_help=True)


@evaluation.callback()
def _evaluation() -> None:
    """Evaluate a model."""


@evaluation.command()
def tools(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Model folder or GGUF file, or a name, as qwen3:0.6b.")
    ],
    cases: Annotated[
        Path,
        typer.Option(metavar="PATH", help="A file of cases, one a line, or the folder of the package bfcl-eval."),
    ],
    n: Annotated[int, typer.Option("--n", min=1, help="Cases of each category, at even distances.")] = 25,
    categories: Annotated[str, typer.Option(metavar="A,B", help="These alone.")] = "",
    tool_choice: Annotated[Literal["auto", "required"], typer.Option(help="Whether each reply must call.")] = "auto",
    style: Annotated[str | None, typer.Option(metavar="NAME", help="Of the agent.")] = None,
    call_format: Annotated[
        str | None, typer.Option(metavar="NAME", help="How the model writes calls, where its folder does not say it.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Cases under way at a time.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a message.")] = 256,
    capacity: Annotated[int, typer.Option(min=1, help="Cells of the cache: tokens of all cases under way.")] = 32768,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the model.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every case and what came of it.")
    ] = None,
) -> None:
    """How often a model calls the right tools with the right arguments, by category; greedy."""
    from .bfcl import is_bfcl, read_bfcl
    from .cases import chosen, read_cases
    from .report import report
    from .table import COLUMNS, scores

    results: list[Result] = []
    with reporting():
        names = [name.strip() for name in categories.split(",") if name.strip()]
        found = read_bfcl(cases, names, n) if is_bfcl(cases) else chosen(read_cases(cases), names, n)
        options = {"tool_choice": tool_choice} if tool_choice != "auto" else {}
        options |= {"style": style} if style is not None else {}
        opening = {"capacity": capacity, "threads": threads, "call_format": call_format}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=stderr, transient=True) as progress:
            task = progress.add_task("opening", total=len(found))

            def done(result: Result) -> None:
                results.append(result)
                right = sum(result.verdict.right for result in results)
                progress.update(task, advance=1, description=f"{right} right")

            ordered = anyio.run(_in_process, model, opening, found, parallel, max_tokens, options, done)
        print_table(f"{escaped(model.name)}: {len(ordered)} cases", COLUMNS, [score.row() for score in scores(ordered)])
        if json_file is not None:
            facts = {"model": str(model), "cases": str(cases), "runner": "agent", "max_tokens": max_tokens, **options}
            json_file.write_text(report(facts, ordered), encoding="utf-8")
            stdout.print(f"Wrote {escaped(json_file)}", soft_wrap=True)


async def _in_process(
    model: Path,
    opening: Mapping[str, Any],
    cases: Sequence[Case],
    parallel: int,
    max_tokens: int,
    options: Mapping[str, Any],
    done: Callable[[Result], None],
) -> list[Result]:
    from .._context import Context
    from .agent_runner import AgentRunner
    from .run import evaluate

    async with Context.open(model, **opening) as context:
        return await evaluate(cases, AgentRunner(context, max_tokens, options), parallel, done)
