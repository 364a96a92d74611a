"""Drafts change no token of a real model: everything that branches live through, with drafts and without.

Two Contexts of one model live through the same seeded verbs over the prompts of `agentkv bench spec`: branches that
generate together (greedy and sampled, with JSON schemas, regular expressions, stop strings), fork, roll back, are
parked, saved and loaded. Each generation is compared. Run by hand:
`python tests/benchmarks/bench_lossless.py MODEL --tokens 30000 [--strategy mixed] [--seed 1]`.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.progress import Progress

import agentkv as kv
from agentkv._bench.prompts import BenchPrompt
from agentkv._bench.work import KINDS, read_work

console = Console()
STRATEGIES: dict[str, Any] = {
    "suffix": kv.spec.Suffix(),
    "deep": kv.spec.Suffix(adaptive=False, max_nodes=32),
    "mixed": kv.spec.Mixed(kv.spec.Suffix(), kv.spec.PromptLookup(adaptive=False, width=4)),
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "role": {"enum": ["author", "editor", "reader"]},
        "years": {"type": "integer"},
    },
    "required": ["name", "role", "years"],
    "additionalProperties": False,
}
OUTPUTS: list[Any] = [str, str, str, kv.JsonSchema(PERSON), kv.Regex(r"(- [a-z ]{3,30}\n){2,5}")]
STOPS: list[list[str]] = [[], [], ["\n\n"], [". ", "```"]]
BRANCHES = 4


@dataclass
class Life:
    """Branches of one Context, and all that they said."""

    ctx: kv.Context
    folder: Path
    branches: list[kv.Branch] = field(default_factory=list)
    said: list[tuple[list[int], str]] = field(default_factory=list)

    async def begin(self, prompts: list[BenchPrompt]) -> None:
        await self.ctx.keep()
        self.branches = [await prompt.branch(self.ctx) for prompt in prompts]

    async def generate(self, options: list[dict[str, Any]]) -> None:
        outs = await kv.gather(*(b.generate(**each) for b, each in zip(self.branches, options, strict=True)))
        self.said += [(out.tokens, out.finish_reason) for out in outs]

    async def fork(self, at: int) -> None:
        self.branches[at] = await self.branches[at].fork()

    async def rollback(self, at: int, tokens: int) -> None:
        branch = self.branches[at]
        await branch.rollback(len(branch) - tokens)

    async def park(self, at: int) -> None:
        await self.branches[at].offload(self.folder)

    async def save(self, at: int) -> None:
        path = self.folder / "branch.kv"
        await self.branches[at].save(path)
        self.branches[at] = await self.ctx.load(path)


def options(rng: random.Random) -> dict[str, Any]:
    """One generation's."""
    sampling = kv.Sampling(temperature=rng.choice([0.0, 0.0, 0.8]), seed=rng.randrange(1000))
    output = rng.choice(OUTPUTS)
    tokens = rng.choice([20, 60, 120])
    return {"max_tokens": tokens, "sampling": sampling, "output": output, "stop": rng.choice(STOPS)}


async def live(lives: list[Life], prompts: list[BenchPrompt], rng: random.Random) -> None:
    """One group of prompts in all Contexts: the same verbs, one after the other."""
    chosen = rng.sample(prompts, BRANCHES)
    for life in lives:
        await life.begin(chosen)
    for _ in range(4):
        each = [options(rng) for _ in range(BRANCHES)]
        at, back = rng.randrange(BRANCHES), rng.randrange(1, 12)
        verb = rng.choice(["fork", "rollback", "park", "save"])
        for life in lives:
            await life.generate(each)
            await (life.rollback(at, back) if verb == "rollback" else getattr(life, verb)(at))


async def compare(model: str, strategy: Any, tokens: int, seed: int) -> tuple[int, int, kv.Stats]:
    """Tokens compared, tokens that differ, and what was drafted."""
    prompts = [prompt for of_kind in read_work(list(KINDS), 8).values() for prompt in of_kind]
    rng, compared, differing = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as bar:
        task = bar.add_task("tokens", total=tokens)
        async with (
            kv.Context.open(model, capacity=16384) as plain,
            kv.Context.open(model, capacity=16384, speculative=strategy) as drafted,
        ):
            lives = [Life(ctx, Path(folder) / name) for ctx, name in ((plain, "plain"), (drafted, "drafted"))]
            for life in lives:
                life.folder.mkdir()
            while compared < tokens:
                await live(lives, prompts, rng)
                for (want, reason), (got, other) in zip(lives[0].said, lives[1].said, strict=True):
                    compared += len(want)
                    if want != got or reason != other:
                        differing += sum(a != b for a, b in zip(want, got, strict=False)) + abs(len(want) - len(got))
                        console.print(f"{reason} {want}\n{other} {got}")
                for life in lives:
                    life.said.clear()
                bar.update(task, completed=compared)
            return compared, differing, drafted.stats


def main(
    model: Annotated[str, typer.Argument(help="Folder, GGUF file or name of a model.")],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens compared, at least.")] = 10_000,
    strategy: Annotated[str, typer.Option(help=", ".join(STRATEGIES))] = "suffix",
    seed: Annotated[int, typer.Option(help="Of the verbs.")] = 0,
) -> None:
    compared, differing, stats = anyio.run(compare, model, STRATEGIES[strategy], tokens, seed)
    console.print(
        f"{Path(model).name}, {strategy}: {compared} tokens compared, {differing} differ; drafted {stats.drafted}, "
        f"accepted {stats.accepted}, forced {stats.forced}"
    )
    raise typer.Exit(differing > 0)


if __name__ == "__main__":
    typer.run(main)
