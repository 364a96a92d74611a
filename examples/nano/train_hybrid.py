"""Train a hybrid of nano's size on nano's data: `python -m examples.nano.train_hybrid --out nano-hybrid`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from . import hybrid
from . import tokenizer as bpe
from .data import WIDER
from .train import Phases, Trainer, run

WEIGHTS = Path(__file__).with_name("weights")
# The attention layers can copy already, so there are no exercises; int4 comes when the new layers have settled.
PHASES = Phases(warmup=0.01, echoes=0, lessons=0.001, all_tokens=0.1, decay=0.1, restart=0.5, again=0.6, int4=0.5)


def trainer(seed: int = 0, budget: int = 4096, lr: float = 2e-3, nano: Path = WEIGHTS) -> Trainer:
    """What trains a hybrid that starts with all that it can take of nano's weights."""
    hybrid.use_fast_layers()
    model = hybrid.build(bpe.load(), seed)
    hybrid.graft(model, nano)
    return Trainer(model, PHASES, seed, budget, lr, WIDER)


def main(
    out: Annotated[Path, typer.Option(help="Folder for the finished model.")] = Path("nano-hybrid"),
    checkpoint: Annotated[Path, typer.Option(help="Where to keep the state of the run.")] = Path("hybrid.ckpt"),
    nano: Annotated[Path, typer.Option(help="nano's weights, to start from.")] = WEIGHTS,
    steps: Annotated[int, typer.Option(help="Updates in the whole run.")] = 4000,
    minutes: Annotated[float, typer.Option(help="Finish earlier than --steps when this time is up.")] = 42.0,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the data and the weights.")] = 0,
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch.")] = 4096,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    save_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.")] = 4.0,
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint when there is one.")] = True,
) -> None:
    """Train the hybrid, writing a usable folder every few minutes."""
    torch.set_num_threads(threads)
    run(trainer(seed, batch_tokens, lr, nano), out, checkpoint, steps, minutes, save_minutes, resume)


if __name__ == "__main__":
    typer.run(main)
