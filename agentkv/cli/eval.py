"""`agentkv eval ...`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .._console.console import escaped, fail, print_table, reporting, stderr, stdout
from .options import CallFormatOption, SteerCallsOption, ThreadsOption

if TYPE_CHECKING:
    from ..evaluation.cases import Case
    from ..evaluation.opening import EvaluationOptions
    from ..evaluation.run import CaseResult

ToolChoice = Literal["auto", "required"]
Style = Literal["free", "plan"]

evaluation = typer.Typer(help="Evaluate a model.", no_args_is_help=True)


@evaluation.callback()
def _evaluation() -> None:
    """Evaluate a model."""


@evaluation.command()
def tools(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Model folder or GGUF file, or a name; with --server what that calls it."),
    ],
    cases: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="File of cases, one a line, or folder of the package bfcl-eval; without, our own."
        ),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Cases of each category, at even distances.")] = 25,
    categories: Annotated[str, typer.Option(metavar="A,B", help="These alone.")] = "",
    seed: Annotated[int | None, typer.Option(help="Draws others of our own cases.")] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask a server of OpenAI's protocol, as http://127.0.0.1:8080/v1.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve the model, and ask it over HTTP.")] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="AGENTKV_API_KEY", help="What the server wants; better by the environment.")
    ] = None,
    tool_choice: Annotated[ToolChoice, typer.Option(help="Must the first message of a case call?")] = "auto",
    call_threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="As of `agentkv serve`, and of an agent.")
    ] = None,
    style: Annotated[Style | None, typer.Option(help="Style of the agent.")] = None,
    call_format: CallFormatOption = None,
    steer_calls: SteerCallsOption = False,
    parallel: Annotated[int, typer.Option(min=1, max=256, help="Cases under way at a time.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a message.")] = 256,
    capacity: Annotated[int, typer.Option(min=1, help="Cells of the cache: tokens of all cases under way.")] = 32768,
    threads: ThreadsOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every case and what came of it.")
    ] = None,
    page_file: Annotated[
        Path | None, typer.Option("--page", metavar="FILE.html", help="Write a page of the cases that are not right.")
    ] = None,
) -> None:
    """How often a model calls the right tools and gives the right answers, by category; greedy.

    The cases go through an agent in this process, or through a server: --serve, --server.
    """
    from ..evaluation.opening import EvaluationOptions

    how = EvaluationOptions(
        model=model,
        server=server,
        serve=serve,
        api_key=api_key,
        tool_choice=tool_choice,
        style=style,
        call_threshold=call_threshold,
        call_format=call_format,
        rescue="steer" if steer_calls else True,
        parallel=parallel,
        max_tokens=max_tokens,
        capacity=capacity,
        threads=threads,
    )
    _check(how)
    with reporting():
        asked = _cases(cases, [name.strip() for name in categories.split(",") if name.strip()], n, seed)
        results, whole = _asked(how, asked)
        _show(how, cases, results, len(asked), json_file, page_file)
    failed = _failed(results)
    if not whole:
        stderr.print("stopped")
        raise typer.Exit(130)
    if failed and failed == len(results):
        raise typer.Exit(1)


@evaluation.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="FIRST.json", help="What --json wrote.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND.json", help="Of another run of the same cases.")],
) -> None:
    """Two runs beside each other: which cases are right in one of them alone, and whether that may be chance."""
    from ..evaluation.compare import COLUMNS, comparisons, read_report

    with reporting():
        rows = [each.row() for each in comparisons(read_report(first), read_report(second))]
        print_table(f"{first.name} and {second.name}", COLUMNS, rows)


def _check(how: EvaluationOptions) -> None:
    """Leaves where options do not go together."""
    if how.server is not None and how.serve:
        fail("--serve asks a server of our own, --server another one; pass one of them")
    if how.server is not None and how.call_format is not None:
        fail("--call-format is of a model that is opened here; the server at --server has its own")
    if how.serve or how.server is not None:
        _import_server(how.serve)
    if how.server is not None and how.rescue == "steer":
        fail("--steer-calls is of a model that is opened here; the server at --server has its own")
    if how.server is not None and how.call_threshold is not None:
        fail("--call-threshold is of a model that is opened here; the server at --server has its own")
    if how.style is not None and (how.serve or how.server is not None):
        fail("--style is of an agent, and a server has none; leave it out")


def _import_server(own: bool) -> None:
    """Imports what asks a server, and what serves one of our own. Leaves where a package is missing."""
    try:
        from ..evaluation import server_runner  # noqa: F401

        if own:
            from ..evaluation import serving  # noqa: F401
    except ImportError as error:
        fail(f"{error.name} is missing; install it with: pip install 'agentkv-sdk[serve]'")


def _cases(path: Path | None, categories: Sequence[str], n: int, seed: int | None) -> list[Case]:
    from ..evaluation.bfcl import read_bfcl
    from ..evaluation.cases import chosen, read_cases
    from ..evaluation.own import SEED, own_cases

    if path is not None and seed is not None:
        fail("--seed draws our own cases, and --cases has others; pass one of them")
    if path is None:
        return chosen(own_cases(SEED if seed is None else seed), categories, n)
    return read_bfcl(path, categories, n) if path.is_dir() else chosen(read_cases(path), categories, n)


def _asked(how: EvaluationOptions, cases: Sequence[Case]) -> tuple[list[CaseResult], bool]:
    """The results in the order of the cases, and whether these are all of them: Ctrl-C leaves those that are there."""
    from ..evaluation.opening import evaluated

    results: list[CaseResult] = []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=stderr, transient=True, disable=not stderr.is_terminal
    ) as progress:
        task = progress.add_task("", total=len(cases))

        def done(result: CaseResult) -> None:
            results.append(result)
            right = sum(result.verdict.right for result in results)
            progress.update(task, advance=1, description=f"{right} right")

        try:
            return anyio.run(evaluated, how, cases, done), True
        except KeyboardInterrupt:
            places = {case.id: place for place, case in enumerate(cases)}
            return sorted(results, key=lambda result: places[result.case.id]), False


def _failed(results: Sequence[CaseResult]) -> int:
    """How many cases have no reply. Says why the first of them has none."""
    errors = [result.outcome.error for result in results if result.outcome.error is not None]
    if errors:
        count = f"all {len(errors)} cases" if len(errors) == len(results) else f"{len(errors)} of {len(results)} cases"
        stderr.print(escaped(f"{count} have no reply; the first: {errors[0]}"), soft_wrap=True)
    return len(errors)


def _show(
    how: EvaluationOptions,
    cases: Path | None,
    results: Sequence[CaseResult],
    asked: int,
    json_file: Path | None,
    page_file: Path | None,
) -> None:
    from ..evaluation.page import page
    from ..evaluation.report import report
    from ..evaluation.table import COLUMNS, scores

    count = f"{asked} cases" if len(results) == asked else f"{len(results)} of {asked} cases"
    title = f"{how.model.name} through {how.through}: {count}"
    facts = {"model": str(how.model), "through": how.through, "cases": str(cases or "our own")}
    facts |= {"tool choice": how.tool_choice, "most tokens of a message": str(how.max_tokens)}
    given = (("style", how.style), ("call format", how.call_format), ("call threshold", how.call_threshold))
    facts |= {"calls": "steered from the first message on"} if how.rescue == "steer" else {}
    facts |= {name: str(value) for name, value in given if value is not None}
    print_table(title, COLUMNS, [score.row() for score in scores(results)])
    _write(json_file, lambda: report(facts, results))
    _write(page_file, lambda: page(title, facts, results))


def _write(path: Path | None, text: Callable[[], str]) -> None:
    if path is not None:
        path.write_text(text(), encoding="utf-8", errors="backslashreplace")  # models write what is no UTF-8
        stdout.print(f"Wrote {escaped(path)}", soft_wrap=True)
