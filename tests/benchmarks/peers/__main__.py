"""The command: measures all peers in turns, prints the table of docs/performance.md, writes two plots."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.benchmarks.memory_reader import MemoryReader

from . import ours, plots, vllm_cpu
from .llama import Llama
from .llama_build import llama_tools
from .models import made_models
from .rows import Decode, Peer, Row, measured_rows
from .shapes import SHAPES, Shape

console = Console()
Rates = dict[str, dict[Row, float]]


def numbers(text: str, least: int) -> list[int]:
    """Of `0,2048,8192`."""
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers with commas between them") from None
    if found[0] < least:
        raise typer.BadParameter(f"{found[0]} is too small; at least {least}")
    return found


def in_turns(peers: list[Peer], rows: list[Row], rounds: int, threads: int) -> tuple[Rates, float]:
    """The median rate of each row of each peer, and that of reading memory (bytes per second)."""
    rates: dict[str, dict[Row, list[float]]] = {peer.name: defaultdict(list) for peer in peers}
    reader, reads = MemoryReader(threads), []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=rounds * len(rows) * len(peers))
        for _ in range(rounds):
            for row in rows:
                start = time.perf_counter()
                reader()
                reads.append(reader.data.nbytes / (time.perf_counter() - start))
                for peer in peers:
                    progress.update(task, description=f"{peer.name}, {row}")
                    rates[peer.name][row].append(peer.rate(row))
                    progress.advance(task)
    medians = {name: {row: statistics.median(kept) for row, kept in rows.items()} for name, rows in rates.items()}
    return medians, statistics.median(reads)


def print_table(rates: Rates, rows: list[Row], shape: Shape, bandwidth: float, title: str) -> None:
    """A line per row: each peer, ours by each of the others, ours by the limit."""
    table = Table("tokens per second", *rates, *(f"x {name}" for name in list(rates)[1:]), "of the limit", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        measured = [rates[name][row] for name in rates]
        ratios = [f"{measured[0] / peer:.2f}" for peer in measured[1:]]
        part = f"{measured[0] / shape.limit(row.depth, row.branches, bandwidth):.0%}" if isinstance(row, Decode) else ""
        table.add_row(str(row), *(f"{rate:.1f}" for rate in measured), *ratios, part)
    console.print(table)
    console.print(f"reading memory: {bandwidth / 1e9:.1f} GB/s")


def main(
    shape: Annotated[Literal["qwen3-0.6b", "smollm2-135m"], typer.Option(help="Of the random model.")] = "qwen3-0.6b",
    depths: Annotated[str, typer.Option(help="Tokens in the cache before one branch decodes.")] = "0,2048,8192,16384",
    branches: Annotated[str, typer.Option(help="Branches that decode on one trunk.")] = "1,2,4,8,16,32,64",
    trunk: Annotated[int, typer.Option(min=16, help="Tokens of that trunk.")] = 2048,
    prompt: Annotated[int, typer.Option(min=16, help="Tokens of the prompt that is prefilled.")] = 512,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens that each branch makes.")] = 24,
    rounds: Annotated[int, typer.Option(min=1, help="Turns that medians are of.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Of each peer.")] = os.cpu_count() or 1,
    quick: Annotated[bool, typer.Option(help="A small model, few sizes, one round, whatever else is given.")] = False,
    vllm_python: Annotated[
        str,
        typer.Option(envvar="AGENTKV_VLLM_PYTHON", help="An interpreter that has vllm, or none."),
    ] = "",
    root: Annotated[Path, typer.Option(help="Where llama.cpp, models and results are kept.")] = Path("build/peers"),
) -> None:
    """agentkv, llama.cpp and vLLM with one random model, in turns; medians, ratios, two plots.

    Keep the machine quiet: threads of llama.cpp wait for each other by spinning, so that others cost it most.
    """
    if quick:
        shape, depths, branches, trunk, tokens, rounds = "smollm2-135m", "0,1024,2048", "1,4,16", 512, 8, 1
    at, counts, form = numbers(depths, 0), numbers(branches, 1), SHAPES[shape]
    if max(*at, trunk) + tokens > form.positions:
        raise typer.BadParameter(f"{shape} knows {form.positions} positions; take smaller depths or a smaller trunk")
    rows = measured_rows(at, counts, trunk, prompt)
    tools = llama_tools(root, console)
    models = made_models(form, root / shape, tools, console)
    with ExitStack() as open_peers:
        console.print("prefilling the trunk")
        peers: list[Peer] = [open_peers.enter_context(ours.opened(models.folder, rows, tokens, threads))]
        peers.append(Llama(tools, models.gguf, tokens, threads, console))
        if vllm_python and vllm_cpu.has_vllm(vllm_python):
            peers.append(open_peers.enter_context(vllm_cpu.worked_by(vllm_python, models.checkpoint, rows, tokens)))
        else:
            console.print("vLLM is left out: AGENTKV_VLLM_PYTHON names no interpreter that has it")
        rates, bandwidth = in_turns(peers, rows, rounds, threads)
    print_table(rates, rows, form, bandwidth, f"{shape} shape, 4-bit weights, {threads} threads, median of {rounds}")
    plots.plot_depths(rates, at, form, bandwidth, root / "depths.png")
    plots.plot_branches(rates, counts, trunk, form, bandwidth, root / "branches.png")
    said = {name: {str(row): rate for row, rate in measured.items()} for name, measured in rates.items()}
    (root / "rates.json").write_text(json.dumps({"bandwidth": bandwidth, "rates": said}, indent=2))
    console.print(f"wrote depths.png, branches.png and rates.json to {root}")


if __name__ == "__main__":
    typer.run(main)
