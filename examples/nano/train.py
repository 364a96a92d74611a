"""Train the nano model from scratch: `python -m examples.nano.train --out nano-hf`."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from . import model as nano
from . import tokenizer as bpe
from .batches import Batch, Batches
from .data import TAUGHT, WIDER, Mix
from .muon import Muon
from .schedule import cosine

PAUSE = 30.0  # seconds: an update that took longer was stopped meanwhile, and that time is none of the run's


@dataclass(frozen=True)
class Phases:
    """What changes on the way, as fractions of the whole run.

    The learning rate falls twice: a warm restart (Loshchilov and Hutter 2017) begins the second, gentler fall.
    """

    warmup: float = 0.006
    echoes: int = 100  # the first steps: random tokens, repeated
    lessons: float = 0.09  # until here much of the data are exercises in copying and looking up
    all_tokens: float = 0.06  # until here what the assistant reads weighs a little too
    decay: float = 0.25  # from here the learning rate falls
    restart: float = 0.62  # here it is back at `again`, and falls anew
    again: float = 0.5
    int4: float = 0.44  # from here the forward pass sees int4 weights

    def exercises(self, done: float) -> float:
        """The share of exercises: they make the heads that copy form early, and are then in the way."""
        return max(0.03, 0.8 * (1 - done / self.lessons))

    def rate(self, done: float) -> float:
        """The learning rate, relative to its peak."""
        if done < self.warmup:
            return done / self.warmup
        if done < self.decay:
            return 1.0
        if done < self.restart:
            return cosine((done - self.decay) / (self.restart - self.decay))
        return self.again * cosine((done - self.restart) / (1 - self.restart))


# A trained model learns more: no exercises, and the second fall of the learning rate alone.
FURTHER = Phases(warmup=0.02, echoes=0, lessons=0.001, all_tokens=0, decay=0, restart=0.02, again=1.0, int4=0)


class Trainer:
    """A model, its two optimizers and the stream it learns from."""

    def __init__(
        self, model: nano.Model, phases: Phases, seed: int = 0, budget: int = 4096, lr: float = 2e-3, mix: Mix = TAUGHT
    ) -> None:
        self.tokenizer: PreTrainedTokenizerFast = bpe.load()
        self.model = model
        self.model.set_attn_implementation("grouped")
        self.batches = Batches(self.tokenizer, seed, budget, mix=mix)
        self.phases = phases
        embedding = self.model.model.embed_tokens.weight
        self.matrices = [p for p in self.model.parameters() if p.ndim == 2 and p is not embedding]
        self.quantised = [*self.matrices, embedding]
        others = [p for p in self.model.parameters() if p.ndim != 2]
        self.rates = (lr, lr)
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(self.matrices, lr=self.rates[0], weight_decay=0.05),
            torch.optim.AdamW(
                [embedding, *others], lr=self.rates[1], betas=(0.9, 0.95), weight_decay=0.0, foreach=True
            ),
        ]
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0

    def loss(self, batch: Batch, done: float) -> tuple[Tensor, float]:
        """Cross-entropy over what the assistant says, early on with a little of the rest; and without it."""
        tokens, spoken = torch.from_numpy(batch.tokens), torch.from_numpy(batch.spoken)
        weight = spoken.float()
        if self.step >= self.phases.echoes and done < self.phases.all_tokens:
            weight = weight + 0.1 * (~spoken & ~torch.from_numpy(batch.padding)).float()
        weight = weight[:, 1:].flatten()
        chosen = weight.nonzero().squeeze(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=nano.BFLOAT16):
            hidden = self.model.model(tokens, use_cache=False).last_hidden_state[:, :-1]
            logits = self.model.lm_head(hidden.flatten(0, 1)[chosen])
        losses = functional.cross_entropy(logits.float(), tokens[:, 1:].flatten()[chosen], reduction="none")
        said = spoken[:, 1:].flatten()[chosen]
        return (losses * weight[chosen]).sum() / weight.sum(), float(losses.detach()[said].mean())

    def train_step(self, done: float) -> float:
        """One update; `done` is the fraction of the run that lies behind."""
        echo = self.step < self.phases.echoes
        batch = self.batches.echo() if echo else self.batches.take(self.phases.exercises(done))
        if done < self.phases.int4:
            loss, said = self.loss(batch, done)
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            with nano.rounded(self.quantised):
                loss, said = self.loss(batch, done)
                loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * self.phases.rate(done)
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.tokens += int((~batch.padding).sum())
        return said

    def save(self, out: Path, checkpoint: Path) -> None:
        """Replace the model folder and the checkpoint, each in one rename."""
        fresh, old = out.with_name(out.name + ".new"), out.with_name(out.name + ".old")
        for folder in (fresh, old):
            shutil.rmtree(folder, ignore_errors=True)
        self.model.save_pretrained(fresh)
        bpe.save(self.tokenizer, fresh)
        if out.exists():
            out.rename(old)
        fresh.rename(out)
        shutil.rmtree(old, ignore_errors=True)
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counts": (self.step, self.tokens, self.seconds, self.batches.chunk, self.batches.echoes),
        }
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)

    def load(self, checkpoint: Path) -> None:
        """Take up a run where its checkpoint left it."""
        state = torch.load(checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.tokens, self.seconds, self.batches.chunk, self.batches.echoes = state["counts"]


def main(
    out: Annotated[Path, typer.Option(help="Folder for the finished model.")] = Path("nano-hf"),
    checkpoint: Annotated[Path, typer.Option(help="Where to keep the state of the run.")] = Path("nano.ckpt"),
    steps: Annotated[int, typer.Option(help="Updates in the whole run.")] = 6000,
    minutes: Annotated[float, typer.Option(help="Finish earlier than --steps when this time is up.")] = 90.0,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the data and the weights.")] = 0,
    wider: Annotated[bool, typer.Option(help="Teach typed answers, calls to make again, free descriptions.")] = False,
    start: Annotated[Path | None, typer.Option(help="Model folder whose weights to train further.")] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch.")] = 4096,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    save_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.")] = 4.0,
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint when there is one.")] = True,
) -> None:
    """Train the model, writing a usable folder every few minutes."""
    torch.set_num_threads(threads)
    model = nano.build(bpe.load(), seed)
    if start is not None:
        model.load_state_dict(LlamaForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict())
    trainer = Trainer(model, FURTHER if start else Phases(), seed, batch_tokens, lr, WIDER if wider else TAUGHT)
    run(trainer, out, checkpoint, steps, minutes, save_minutes, resume)


def run(
    trainer: Trainer, out: Path, checkpoint: Path, steps: int, minutes: float, save_minutes: float, resume: bool
) -> None:
    """Train until `steps` or `minutes` are up, from the checkpoint on where there is one and `resume` says so."""
    console = Console()
    if resume and checkpoint.exists():
        trainer.load(checkpoint)
        console.print(f"resumed at step {trainer.step}")
    count = sum(p.numel() for p in trainer.model.parameters())
    threads = torch.get_num_threads()
    console.print(f"{count:,} parameters, {len(trainer.tokenizer)} tokens in the vocabulary, {threads} thread(s)")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=steps, completed=trainer.step)
        before, saved, recent = time.monotonic(), trainer.seconds, []
        while (done := max(trainer.step / steps, trainer.seconds / (60 * minutes))) < 1:
            recent.append(trainer.train_step(done))
            now = time.monotonic()
            trainer.seconds, before = trainer.seconds + min(now - before, PAUSE), now
            progress.update(bar, completed=done * steps, description=f"loss {recent[-1]:.4f}")
            if trainer.step % 50 == 0:
                speed = trainer.tokens / trainer.seconds
                mean = sum(recent[-50:]) / len(recent[-50:])
                console.print(
                    f"step {trainer.step}  loss {mean:.4f}  {trainer.seconds / 60:.1f} min  {speed:.0f} tokens/s"
                )
            if trainer.seconds - saved > 60 * save_minutes:
                trainer.save(out, checkpoint)
                saved = trainer.seconds
    trainer.save(out, checkpoint)
    console.print(f"{trainer.tokens:,} tokens in {trainer.seconds / 60:.1f} minutes; model in {out}")


if __name__ == "__main__":
    typer.run(main)
