"""Measure what the shipped model accepts of its draft head, and write it into the head's manifest:
`python -m examples.nano.measure_head agentkv/models/nano`.

The prompts are held out from training, and are not those that `agentkv bench` measures with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer
from agentkv_runtime.folder.draft_manifest import DRAFT_MANIFEST_NAME, record_acceptance

from agentkv._bench.acceptance import measure_acceptance
from agentkv._bench.prompts import BenchPrompt

from .prompts import prompts


def main(
    folder: Annotated[Path, typer.Argument(help="Model folder that holds the head.")],
    count: Annotated[int, typer.Option(help="Prompts.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the questions; 1 is that of the benchmark.")] = 2,
) -> None:
    """Measure, print and record."""
    asked = [BenchPrompt(prompt["messages"], prompt["tools"]) for prompt in prompts(count, seed)]
    acceptance = anyio.run(measure_acceptance, folder, folder, asked)
    record_acceptance(folder / DRAFT_MANIFEST_NAME, acceptance)
    typer.echo(acceptance.model_dump_json())


if __name__ == "__main__":
    typer.run(main)
