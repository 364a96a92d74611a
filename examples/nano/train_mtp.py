"""Train a multi-token prediction layer for nano: `python -m examples.nano.train_mtp nano-hf --out nano-mtp`.

The layer is that of DeepSeek-V3 (arXiv 2412.19437, section 2.2): nano's own kind of decoder layer over its hidden state
at t and its token t + 1, which says token t + 2 through nano's own head. Levels beyond the first train it on its own
output, as drafts run it.
"""

from __future__ import annotations

import copy
import json
import shutil
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from agentkv_runtime.hf.next_token import NextTokenModel
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from . import model as nano
from . import tokenizer as bpe
from .batches import Batch, Batches
from .data import WIDER
from .muon import Muon
from .schedule import rise_and_fall
from .target import Target

LESSONS = 0.03  # the share of exercises, as for the draft head
FADING = 0.8  # weight of each level's loss against that of the level before
WARMUP, DECAY, INT4 = 0.02, 0.3, 0.5  # when the rate has risen, begins to fall, and weights are rounded, of the run


def build(target: Target) -> NextTokenModel:
    """A layer that starts as the target's last one, over the mean of hidden state and embedding."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = 1
    causal = LlamaForCausalLM(config)
    causal.set_attn_implementation("grouped")
    layer = NextTokenModel(causal, target.model.model.norm, hidden_first=False)
    causal.model.layers[0].load_state_dict(target.model.model.layers[-1].state_dict())
    with torch.no_grad():
        causal.model.embed_tokens.weight = nn.Parameter(target.embedding, requires_grad=False)
        causal.model.norm.load_state_dict(target.model.model.norm.state_dict())
        layer.eh_proj.weight.copy_(torch.eye(config.hidden_size).repeat(1, 2) / 2)
    return layer.requires_grad_(True).train()


class Trainer:
    """A layer, its optimizers, the target and the stream that it learns from."""

    def __init__(self, target: Target, seed: int, batch_tokens: int, lr: float, levels: int) -> None:
        torch.manual_seed(seed)
        self.target, self.levels, self.lr = target, levels, lr
        self.batches = Batches(bpe.load(), seed + 2000, batch_tokens, mix=WIDER)
        self.layer = build(target)
        self.layer.causal.model.embed_tokens.weight.requires_grad_(False)
        self.layer.target_norm.requires_grad_(False)
        learnt = [parameter for parameter in self.layer.parameters() if parameter.requires_grad]
        self.matrices = [parameter for parameter in learnt if parameter.ndim == 2]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(self.matrices, lr=lr, weight_decay=0.05),
            torch.optim.AdamW([p for p in learnt if p.ndim == 1], lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]

    def loss(self, batch: Batch) -> tuple[Tensor, list[float]]:
        """Cross-entropy against the target's distribution over all levels; how often each level is right."""
        tokens = torch.from_numpy(batch.tokens)
        _, hidden = self.target.run(tokens)
        wanted = torch.from_numpy(batch.spoken).roll(-1, 1)  # rows after which the assistant says something
        wanted[:, -1] = False
        teacher = self.target.logits(hidden)
        total, right, weight = torch.zeros(()), [], 0.0
        for level in range(1, self.levels + 1):
            # Row t: the hidden state before, and the token level places on; it says what the target says there.
            rows = tokens.shape[1] - level
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=nano.BFLOAT16):
                hidden = self._outputs(tokens[:, level:], hidden[:, :rows])
                picked = wanted[:, level:]
                said = functional.linear(hidden[picked], self.target.head).float()
            truth = torch.softmax(teacher[:, level:][picked], -1)
            total = total - FADING ** (level - 1) * (truth * functional.log_softmax(said, -1)).sum(-1).mean()
            weight += FADING ** (level - 1)
            right.append(float((said.argmax(-1) == truth.argmax(-1)).float().mean()))
        return total / weight, right

    def _outputs(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        layer = self.layer
        parts = (layer.enorm(layer.causal.model.embed_tokens(tokens)), layer.hnorm(hidden))
        mixed = layer.eh_proj(torch.cat(parts, -1))
        out: Tensor = layer.causal.model(inputs_embeds=mixed, use_cache=False).last_hidden_state
        return out

    def train_step(self, done: float) -> tuple[float, list[float]]:
        """One update; `done` is the fraction of the run that lies behind."""
        batch = self.batches.take(LESSONS)
        with nano.rounded(self.matrices if done >= INT4 else []):
            loss, right = self.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.layer.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * rise_and_fall(done, WARMUP, DECAY)
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach()), right

    def save(self, source: Path, out: Path) -> None:
        """Writes the target with the layer, as published checkpoints have it, in one rename."""
        fresh = out.with_name(out.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(source, fresh)
        root = f"model.layers.{self.target.config.num_hidden_layers}."
        block = self.layer.causal.model
        own = {f"{root}{name}": value for name, value in block.layers[0].state_dict().items()}
        for name, part in (
            ("enorm", self.layer.enorm),
            ("hnorm", self.layer.hnorm),
            ("eh_proj", self.layer.eh_proj),
            ("shared_head.norm", block.norm),
        ):
            own[f"{root}{name}.weight"] = part.weight.detach()
        file = fresh / "model.safetensors"
        save_file({**load_file(file), **{name: each.half() for name, each in own.items()}}, file, {"format": "pt"})
        facts = json.loads((fresh / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
        (fresh / "config.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        shutil.rmtree(out, ignore_errors=True)
        fresh.rename(out)


def main(
    target: Annotated[Path, typer.Argument(help="Hugging Face folder of the trained model.")],
    out: Annotated[Path, typer.Option(help="Folder for the model with its layer.")] = Path("nano-mtp"),
    minutes: Annotated[float, typer.Option(help="How long to train.")] = 20.0,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the data.")] = 0,
    batch_tokens: Annotated[int, typer.Option(help="Tokens in a batch.")] = 4096,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    levels: Annotated[int, typer.Option(help="How many tokens ahead the layer is trained.")] = 3,
) -> None:
    """Train the layer, and write the model with it."""
    torch.set_num_threads(threads)
    console = Console()
    trainer = Trainer(Target(target), seed, batch_tokens, lr, levels)
    count = sum(p.numel() for p in trainer.layer.parameters() if p.requires_grad)
    console.print(f"{count:,} parameters")
    start, recent = time.monotonic(), []
    while (done := (time.monotonic() - start) / (60 * minutes)) < 1:
        recent.append(trainer.train_step(done))
        if len(recent) % 50 == 0:
            last = recent[-50:]
            right = " ".join(f"{100 * np.mean(level):.1f}" for level in zip(*(r for _, r in last), strict=True))
            loss = sum(loss for loss, _ in last) / len(last)
            console.print(f"step {len(recent)}  loss {loss:.4f}  right {right}  {100 * done:.0f}%")
    with nano.rounded(trainer.matrices), torch.no_grad():
        held = Batches(bpe.load(), 1, batch_tokens, "eval", WIDER)
        rates = [trainer.loss(held.take(0.0))[1] for _ in range(20)]
    trainer.save(target, out)
    shares = ", ".join(f"{100 * np.mean(level):.1f}%" for level in zip(*rates, strict=True))
    console.print(f"{len(recent)} updates; on held-out conversations right at each level: {shares}; model in {out}")


if __name__ == "__main__":
    typer.run(main)
