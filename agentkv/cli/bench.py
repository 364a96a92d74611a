"""`agentkv bench ...`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .._bench.results import PLAIN, BenchResult
from .._console.console import escaped, fail, reporting, stderr, stdout
from .._types.errors import AgentKVError, ContextFull

if TYPE_CHECKING:
    from .._bench.prompts import BenchPrompt
    from .._bench.row_costs import ModelFacts
    from .._bench.speculation import BenchSettings
    from .._model.drafters import Speculative

_COLUMNS = (
    "tokens/\nforward",
    "forwards/\ntoken",
    "accepted/\ndrafted",
    "ms/\ntoken",
    "drafting,\nms/token",
    "times\nplain",
)
_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_CELLS = 4096  # of a prompt and what follows it

bench = typer.Typer(help="Measure a model on this machine.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    """Measure a model on this machine."""


@bench.command()
def spec(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder or GGUF file, or a name.")],
    work: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Kinds of work: edit, extract, tools, prose. By default all of them."),
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Prompts of each kind, 8 at most; by default 4, or --branches.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompts of your own instead, one per line: text, or (.jsonl) chat messages. By default those of the "
            "model folder, where it has some.",
        ),
    ] = None,
    draft_model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also draft with this smaller model.")
    ] = None,
    branches: Annotated[int, typer.Option(min=1, max=256, help="Prompts gone on with at the same time.")] = 1,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=2, max=4096, help="Tokens per prompt, at most; by default what its kind needs, or 128."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions; times are medians of them.")] = 3,
    adaptive: Annotated[
        bool, typer.Option(help="Draft as it pays; --no-adaptive drafts and verifies all that there is room for.")
    ] = True,
    capacity: Annotated[
        int | None, typer.Option(min=1, help="Cells of each cache; by default 4,096 per branch, 8,192 at least.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of the model's forwards.")] = None,
    depths: Annotated[bool, typer.Option("--depths", help="Also show how deep drafts came true.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the results (needs matplotlib).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Plain decoding beside every speculation strategy that the model has, in turns in one run, by kind of work.

    Suffix and PromptLookup always take part, Eagle and MTP where the folder has a head or a layer for them. Fails
    where a strategy changed a token.
    """
    from .._bench.plot import check_matplotlib, draw
    from .._bench.speculation import BenchSettings
    from .._bench.strategies import Drafted, strategies_for
    from ..models._resolve import folder_called

    if work is not None and prompts is not None:
        fail("--work measures prompts that come along, and --prompts has others; pass one of them")
    with reporting():
        if plot is not None:
            check_matplotlib()
        folder = folder_called(model.expanduser())
        settings = BenchSettings(
            branches=branches,
            max_tokens=max_tokens,
            temperature=temperature,
            repeat=repeat,
            capacity=max(8192, _CELLS * branches) if capacity is None else capacity,
            threads=threads,
        )
        strategies = strategies_for(Drafted(model=folder, draft_model=draft_model, adaptive=adaptive))
        asked = _asked(folder, work, prompts, n or max(4, branches))
        run = _Run()
        _measure(run, folder, strategies, asked, settings)
    count = sum(map(len, asked.values()))
    how = f"{count} prompts, {branches} at a time, " + (f"temperature {temperature:g}" if temperature else "greedy")
    title = f"{folder.resolve().name}: {how}"
    if as_json:
        _print_json(run, {"model": str(model), "prompts": count, "adaptive": adaptive, **asdict(settings)})
    else:
        _print_tables(run, title, depths=depths)
    if plot is not None and run.results:  # whatever it fails on, what was measured is printed
        with reporting():
            draw(run.results, plot, title)
    _end(run)


@dataclass(slots=True)
class _Run:
    """What a run has found so far: facts of the model, and the results of each kind of work that is complete; and what
    ended it early."""

    facts: ModelFacts | None = None
    results: list[BenchResult] = field(default_factory=list)
    stopped: bool = False
    failure: str = ""


def _asked(folder: Path, work: str | None, prompts: Path | None, n: int) -> Mapping[str, Sequence[BenchPrompt]]:
    """The prompts by kind of work."""
    from .._bench.prompts import OWN_NAME, has_own_prompts, read_prompts
    from .._bench.work import KINDS, read_work

    if prompts is not None:
        return {prompts.name: read_prompts(prompts)}
    if work is None and has_own_prompts(folder):
        return {OWN_NAME: read_prompts(folder / OWN_NAME)}
    kinds = list(KINDS) if work is None else [kind.strip() for kind in work.split(",") if kind.strip()]
    return read_work(kinds, n)


def _measure(
    run: _Run,
    folder: Path,
    strategies: Mapping[str, Speculative],
    asked: Mapping[str, Sequence[BenchPrompt]],
    settings: BenchSettings,
) -> None:
    """Fills `run`. Ctrl-C and errors end it early, and are kept in it: what is complete is still printed."""
    from .._bench.row_costs import model_facts
    from .._bench.speculation import measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    groups = sum(len(settings.groups(prompts)) for prompts in asked.values())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task("", total=settings.repeat * groups * (1 + len(strategies)))

        async def measured() -> None:
            progress.update(task, description="rows")
            run.facts = await model_facts(folder, settings.threads)
            for kind, prompts in asked.items():
                progress.update(task, description=kind)
                if not stderr.is_terminal:
                    stderr.print(escaped(f"{kind}: {len(prompts)} prompts"))
                advance = partial(progress.advance, task)
                run.results += await measure(folder, strategies, kind, prompts, settings, advance)

        try:
            anyio.run(measured)
        except KeyboardInterrupt:
            run.stopped = True
        except AgentKVError as error:
            run.failure = f"{error} (--capacity, --branches)" if isinstance(error, ContextFull) else str(error)


def _print_json(run: _Run, given: Mapping[str, object]) -> None:
    if run.facts is not None and run.results:
        results = [result.as_dict() for result in run.results]
        stdout.print_json(json.dumps({**given, **asdict(run.facts), "results": results}))


def _print_tables(run: _Run, title: str, *, depths: bool) -> None:
    if run.facts is None or not run.results:
        return
    stdout.print(_table(run.results, escaped(title)))
    if depths:
        stdout.print(_depth_table(run.results))
    one = run.facts.row_ms[1]
    times = ", ".join(f"{rows}: {ms / one:.2f}" for rows, ms in run.facts.row_ms.items())
    stdout.print(f"a forward of 1 row takes {one:.2f} ms; by rows, times that: {times}", soft_wrap=True)


def _end(run: _Run) -> None:
    """Leaves with the status of what ended the run early, and of a token that differs where none may."""
    if run.stopped:
        stderr.print("stopped")
        raise typer.Exit(130)
    _check_lossless(run)
    if run.failure:
        fail(run.failure)


def _check_lossless(run: _Run) -> None:
    """Says which strategies changed a token; leaves with status 1 where none may."""
    wrong = [result for result in run.results if not result.same_output]
    exact = run.facts is not None and run.facts.bit_exact
    for result in wrong:
        why = "NOT LOSSLESS, a fault of agentkv" if exact else "this backend's sums depend on the batch"
        said = f"{result.work}: {result.name} did not say what plain decoding says ({result.difference}): {why}"
        stderr.print(escaped(said), style="bold red" if exact else "", soft_wrap=True)
    if wrong and exact:
        raise typer.Exit(1)


def _table(results: Sequence[BenchResult], title: str) -> Table:
    table = _empty_table(results, title, _COLUMNS)
    for result in results:
        drafts = result.name != PLAIN
        table.add_row(
            *_names(results, result),
            f"{result.tokens_per_forward:.2f}",
            f"{result.forwards_per_token:.2f}",
            f"{100 * result.acceptance:.0f}%" if drafts else "",
            f"{result.ms_per_token:.3f}",
            f"{result.draft_ms_per_token:.3f}" if drafts else "",
            f"{result.speedup:.2f}",
        )
    return table


def _depth_table(results: Sequence[BenchResult]) -> Table:
    drafting = [result for result in results if result.name != PLAIN]
    title = "Drafts of which so many tokens or more came true"
    table = _empty_table(drafting, title, ("drafts", *map(str, _DEPTHS)))
    for result in drafting:
        shares = (f"{100 * result.accepted_at(depth):.0f}%" for depth in _DEPTHS)
        table.add_row(*_names(drafting, result), str(result.drafts), *shares)
    return table


def _empty_table(results: Sequence[BenchResult], title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, collapse_padding=True)
    table.pad_edge = False
    for name in ("work", "strategy")[-len(_names(results, results[0])) :]:
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _names(results: Sequence[BenchResult], result: BenchResult) -> tuple[str, ...]:
    """Cells that name a result: its kind of work, where there are several, and its strategy."""
    several = len({each.work for each in results}) > 1
    return (escaped(result.work), result.name) if several else (result.name,)
