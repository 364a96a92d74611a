"""`agentkv bench ...`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .._bench.results import PLAIN, BenchResult
from .._console.console import escaped, fail, reporting, stderr, stdout
from .._model.drafters import Speculative
from .._types.errors import ContextFull

_COLUMNS = (
    "tokens/\nforward",
    "forwards/\ntoken",
    "accepted/\ndrafted",
    "ms/\ntoken",
    "drafting,\nms/token",
    "times\nplain",
)

bench = typer.Typer(help="Measure a model on this machine.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    """Measure a model on this machine."""


@bench.command()
def spec(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Model folder.")],
    draft_model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also draft with this smaller model.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompts, one per line: text, or (.jsonl) chat messages. By default those of the model folder, or a "
            "few that suit any model.",
        ),
    ] = None,
    branches: Annotated[int, typer.Option(min=1, max=256, help="Prompts gone on with at the same time.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=2, max=4096, help="Tokens per prompt, at most.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions; times are medians of them.")] = 3,
    adaptive: Annotated[
        bool, typer.Option(help="Draft as it pays; --no-adaptive drafts and verifies all that there is room for.")
    ] = True,
    capacity: Annotated[int, typer.Option(min=1, help="Cells of each cache.")] = 8192,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of the model's forwards.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the results (needs matplotlib).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Plain decoding beside every speculation strategy that the model has, in turns in one run.

    PromptLookup always takes part, Eagle where the folder has a draft head.
    """
    from agentkv_runtime.folder.model_folder import is_model_folder, read_model_folder

    from .. import spec as strategies
    from .._bench.plot import check_matplotlib, draw
    from .._bench.prompts import default_prompts, read_prompts
    from .._bench.speculation import BenchSettings, measure

    with reporting():
        try:
            if plot is not None:
                check_matplotlib()
            candidates: dict[str, Speculative] = {"PromptLookup": strategies.PromptLookup(adaptive=adaptive)}
            if is_model_folder(folder) and read_model_folder(folder).draft_path is not None:
                candidates["Eagle"] = strategies.Eagle(adaptive=adaptive)
            if draft_model is not None:
                candidates["DraftModel"] = strategies.DraftModel(draft_model, adaptive=adaptive)
            asked = read_prompts(prompts) if prompts is not None else default_prompts(folder)
            settings = BenchSettings(
                branches=branches,
                max_tokens=max_tokens,
                temperature=temperature,
                repeat=repeat,
                capacity=capacity,
                threads=threads,
            )
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, console=stderr, transient=True) as progress:
                groups = -(-len(asked) // branches)
                task = progress.add_task("measuring", total=repeat * groups * (1 + len(candidates)))

                async def run() -> list[BenchResult]:
                    return await measure(folder, candidates, asked, settings, lambda: progress.advance(task))

                results = anyio.run(run)
        except ContextFull as error:
            fail(f"{error} (--capacity, --branches)")
        except KeyboardInterrupt:
            stderr.print("stopped")
            raise typer.Exit(130) from None
    how = f"{len(asked)} prompts, {branches} at a time, " + (
        f"temperature {temperature:g}" if temperature else "greedy"
    )
    if as_json:
        facts = {"model": str(folder), "prompts": len(asked), "branches": branches, "max_tokens": max_tokens}
        facts |= {"temperature": temperature, "repeat": repeat, "adaptive": adaptive}
        stdout.print_json(json.dumps({**facts, "results": [result.as_dict() for result in results]}))
    else:
        stdout.print(_table(results, escaped(f"{folder.resolve().name}: {how}")))
        for result in results:
            if not result.same_output:
                stderr.print(
                    f"{result.name} did not say what plain decoding says: this backend's sums depend on the batch"
                )
    if plot is not None:  # last: whatever it fails on, what was measured is printed
        with reporting():
            draw(results, plot, f"{folder.resolve().name}: {how}")


def _table(results: Sequence[BenchResult], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("strategy", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        drafts = result.name != PLAIN
        table.add_row(
            result.name,
            f"{result.tokens_per_forward:.2f}",
            f"{result.forwards_per_token:.2f}",
            f"{100 * result.acceptance:.0f}%" if drafts else "",
            f"{result.ms_per_token:.3f}",
            f"{result.draft_ms_per_token:.3f}" if drafts else "",
            f"{result.speedup:.2f}",
        )
    return table
