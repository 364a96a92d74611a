"""Train a draft head for a trained nano model: `python -m examples.nano.train_head nano-hf --out nano-head`."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from agentkv_runtime.export.draft_head import DraftHead
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig

from . import model as nano
from . import tokenizer as bpe
from .acceptance import report
from .batches import Batch, Batches
from .copying_head import plant
from .data import WIDER
from .muon import Muon
from .rollouts import Starts, rollout
from .schedule import rise_and_fall
from .target import Target

LESSONS = 0.03  # the share of exercises, as late in the target's own training
FADING = 0.9  # weight of each level's loss against that of the level before
WARMUP, DECAY, INT4 = 0.01, 0.3, 0.5  # when the rate has risen, begins to fall, and weights are rounded, of the run


def frequent(batches: Batches, size: int, vocabulary: int, samples: int = 400) -> tuple[Tensor, float]:
    """The `size` tokens that the assistant says most, by id, and the share of what it says that they are."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for _ in range(samples):
        batch = batches.take(0.0)
        counts += np.bincount(batch.tokens[batch.spoken], minlength=vocabulary)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    return torch.from_numpy(chosen), float(counts[chosen].sum() / counts.sum())


def build(target: Target, said: Tensor, intermediate: int, seed: int) -> DraftHead:
    """A head for `target` with a vocabulary of the tokens `said`, which starts from what the target knows."""
    torch.manual_seed(seed)
    config = LlamaConfig.from_dict(target.config.to_dict())
    config.num_hidden_layers, config.intermediate_size = 1, intermediate
    config.tie_word_embeddings = False
    config.draft_vocab_size = len(said)
    head = DraftHead(config, target.feature_dim)
    with torch.no_grad():
        head.embed_tokens.weight = torch.nn.Parameter(target.embedding, requires_grad=False)
        head.lm_head.weight.copy_(target.embedding[said])
        head.norm.weight.copy_(target.model.model.norm.weight)
        head.midlayer.self_attn.o_proj.weight.zero_()
        head.midlayer.mlp.down_proj.weight.zero_()
        head.d2t.copy_(said - torch.arange(len(said)))
        head.t2d.zero_()[said] = True
    return head


class Trainer:
    """A head, its two optimizers, the target and the stream it learns from."""

    def __init__(self, target: Target, seed: int, batch_tokens: int, lr: float, levels: int, said: int, mlp: int):
        self.tokenizer = bpe.load()
        self.target = target
        self.levels = levels
        self.batches = Batches(self.tokenizer, seed + 1000, batch_tokens, mix=WIDER)
        tokens, self.coverage = frequent(
            Batches(self.tokenizer, seed, batch_tokens, mix=WIDER), said, len(self.tokenizer)
        )
        self.head = build(target, tokens, mlp, seed)
        plant(self.head, target, Batches(self.tokenizer, seed, batch_tokens, mix=WIDER), seed)
        learnt = [p for p in self.head.parameters() if p.requires_grad]
        matrices = [p for p in learnt if p.ndim == 2 and p is not self.head.lm_head.weight]
        self.quantised = [*matrices, self.head.lm_head.weight]
        rest = [self.head.lm_head.weight, *(p for p in learnt if p.ndim == 1)]
        self.lr = lr
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=lr, weight_decay=0.05),
            torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, foreach=True),
        ]
        self.step = 0
        self.seconds = 0.0

    def loss(self, batch: Batch) -> tuple[Tensor, list[float]]:
        """Cross-entropy against the target's distribution over all levels; how often each level is right."""
        tokens = torch.from_numpy(batch.tokens)
        starts = Starts.of(batch, self.levels)
        features, last = self.target.run(tokens)
        wanted = torch.from_numpy(batch.spoken).roll(-1, 1)
        wanted[:, -1] = False
        row_of = torch.full(wanted.shape, -1)
        row_of[wanted] = torch.arange(int(wanted.sum()))
        logits = self.target.logits(last[wanted])
        covered = self.head.t2d[logits.argmax(-1)]
        teacher = torch.softmax(logits[:, self.head.t2d], -1)
        total, right, weight = torch.zeros(()), [], 0.0
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=nano.BFLOAT16):
            for level, hidden in enumerate(rollout(self.head, tokens, features, starts)):
                valid = starts.valid[level]
                rows = row_of.gather(1, (starts.at + level + 1).clamp(max=tokens.shape[1] - 1))[valid]
                said = self.head.lm_head(self.head.norm(hidden[valid])).float()
                losses = -(teacher[rows] * functional.log_softmax(said, -1)).sum(-1) * covered[rows]
                total = total + FADING**level * losses.mean()
                weight += FADING**level
                agreed = (said.argmax(-1) == teacher[rows].argmax(-1)) & covered[rows]
                right.append(float(agreed.float().mean()))
        return total / weight, right

    def train_step(self, done: float) -> tuple[float, list[float]]:
        """One update; `done` is the fraction of the run that lies behind."""
        batch = self.batches.take(LESSONS)
        with nano.rounded(self.quantised if done >= INT4 else []):
            loss, right = self.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * rise_and_fall(done, WARMUP, DECAY)
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return float(loss.detach()), right

    def save(self, out: Path, checkpoint: Path) -> None:
        """Replace the head's folder and the checkpoint, each in one rename."""
        fresh = out.with_name(out.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        state = {name: tensor for name, tensor in self.head.state_dict().items() if name != "embed_tokens.weight"}
        save_file(state, fresh / "model.safetensors")
        facts = self.head.config.to_dict() | {"architectures": ["LlamaForCausalLMEagle3"]}
        (fresh / "config.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        shutil.rmtree(out, ignore_errors=True)
        fresh.rename(out)
        whole = {
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counts": (self.step, self.seconds, self.batches.chunk),
        }
        torch.save(whole, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)

    def load(self, checkpoint: Path) -> None:
        """Take up a run where its checkpoint left it."""
        whole = torch.load(checkpoint, weights_only=True)
        self.head.load_state_dict(whole["head"])
        for optimizer, saved in zip(self.optimizers, whole["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds, self.batches.chunk = whole["counts"]


def main(
    target: Annotated[Path, typer.Argument(help="Hugging Face folder of the trained model.")],
    out: Annotated[Path, typer.Option(help="Folder for the finished head.")] = Path("nano-head"),
    checkpoint: Annotated[Path, typer.Option(help="Where to keep the state of the run.")] = Path("nano-head.ckpt"),
    steps: Annotated[int, typer.Option(help="Updates in the whole run.")] = 4000,
    minutes: Annotated[float, typer.Option(help="Finish earlier than --steps when this time is up.")] = 60.0,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the data and the weights.")] = 0,
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch.")] = 4096,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    levels: Annotated[int, typer.Option(help="How many levels deep a draft is trained.")] = 6,
    vocabulary: Annotated[int, typer.Option(help="Tokens that the head can say.")] = 640,
    intermediate: Annotated[int, typer.Option(help="Width of the head's feed-forward layer.")] = 512,
    save_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.")] = 4.0,
    held_out: Annotated[int, typer.Option(help="Held-out batches to measure the finished head on.")] = 40,
    resume: Annotated[bool, typer.Option(help="Continue from the checkpoint when there is one.")] = True,
) -> None:
    """Train the head, then print what it is worth on held-out conversations."""
    torch.set_num_threads(threads)
    console = Console()
    trainer = Trainer(Target(target), seed, batch_tokens, lr, levels, vocabulary, intermediate)
    if resume and checkpoint.exists():
        trainer.load(checkpoint)
        console.print(f"resumed at step {trainer.step}")
    count = sum(p.numel() for p in trainer.head.parameters() if p.requires_grad)
    console.print(f"{count:,} parameters; {vocabulary} tokens, {100 * trainer.coverage:.2f}% of what is said")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=steps, completed=trainer.step)
        before, saved, recent = time.monotonic(), trainer.seconds, []
        while (done := max(trainer.step / steps, trainer.seconds / (60 * minutes))) < 1:
            recent.append(trainer.train_step(done))
            now = time.monotonic()
            trainer.seconds, before = trainer.seconds + now - before, now
            progress.update(bar, completed=done * steps, description=f"loss {recent[-1][0]:.4f}")
            if trainer.step % 50 == 0:
                last = recent[-50:]
                loss = sum(loss for loss, _ in last) / len(last)
                right = " ".join(f"{100 * np.mean(level):.1f}" for level in zip(*(r for _, r in last), strict=True))
                console.print(f"step {trainer.step}  loss {loss:.4f}  right {right}  {trainer.seconds / 60:.1f} min")
            if trainer.seconds - saved > 60 * save_minutes:
                trainer.save(out, checkpoint)
                saved = trainer.seconds
    trainer.save(out, checkpoint)
    console.print(f"{trainer.step} updates in {trainer.seconds / 60:.1f} minutes; head in {out}")
    batches = Batches(trainer.tokenizer, 1, batch_tokens, "eval", WIDER)
    with nano.rounded(trainer.quantised):
        report(trainer.head, trainer.target, [batches.take(0.0) for _ in range(held_out)], console)


if __name__ == "__main__":
    typer.run(main)
