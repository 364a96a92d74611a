"""What grammars cost: the time that steps wait for them, for generations that ride together; forwards per token.

Run by hand: `python tests/benchmarks/bench_grammar.py [--branches 8] [--forward-ms 34] [--folder KEPT_EXPORT]`. The
first table is of the engine's own steps at several vocabularies, over a forward that takes as long as is said (34 ms:
eight branches of a model of the shape of Qwen3-0.6B on two cores) and gives random logits, so that outputs take every
turn that the grammar leaves open. The second is of that shape itself, with random weights and a vocabulary of 151,936;
its export needs torch, and minutes, unless FOLDER holds it (`bench_model.py` makes the same). The last is nano's.
"""

from __future__ import annotations

import random
import string
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import numpy as np
import numpy.typing as npt
import typer
from agentkv_runtime import _core
from agentkv_runtime.engine import Engine, GenerateOptions
from bench_model import VOCAB, export, prompt
from rich.console import Console
from rich.table import Table

import agentkv as kv
from agentkv.output._compiler import ConstraintCompiler

VOCABULARIES = (512, 32_000, 151_936)
COUNTED = ("steps", "forwards", "generated", "forced", "constraint_seconds", "mask_seconds")
COLUMNS = ("a step takes", "masks beside", "waited for", "share of a step", "forwards per token")
KEYS = ("name", "age", "tags", "place", "city", "coast", "red", "green", "blue", "true", "false")
MOST_TOKENS = 64
PERSON = kv.JsonSchema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
            "place": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}, "coast": {"type": "boolean"}},
                "required": ["city", "coast"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "age", "tags", "place"],
        "additionalProperties": False,
    }
)
console = Console()


class Spelling:
    """A tokenizer of random words, letters and signs, which takes the longest token each time."""

    def __init__(self, size: int) -> None:
        rng = random.Random(0)
        words = dict.fromkeys(bytes([byte]) for byte in range(256))
        while len(words) < size - 1:
            letters = rng.random() < 0.85
            source = "etaoinshrdlucmfw" if letters else string.digits + string.punctuation + " \n"
            word = "".join(rng.choice(source) for _ in range(rng.randint(2, 9 if letters else 4)))
            words[(rng.choice(["", " "]) * letters + word).encode()] = None
        self.words = [*words, b"<|end|>"]
        self._ids = {word: i for i, word in enumerate(self.words)}
        self._longest = max(map(len, self.words))
        self.eos_ids = self.special_ids = [size - 1]
        self.added_ids = {"<|end|>": size - 1}

    def token_bytes(self, size: int) -> list[bytes]:
        return self.words[:size]

    def encode(self, text: str) -> list[int]:
        rest, ids = text.encode(), []
        while rest:
            n = next(n for n in range(min(self._longest, len(rest)), 0, -1) if rest[:n] in self._ids)
            ids.append(self._ids[rest[:n]])
            rest = rest[n:]
        return ids


def slow_program(cells: _core.Cells, vocab_size: int, seconds: float) -> _core.PythonRunner:
    """A program of random logits whose forward takes so long."""
    rows = np.random.default_rng(0).normal(size=(64, vocab_size)).astype(np.float32)
    turn = [0]

    def forward(tokens: Any, positions: Any, indices: Sequence[int]) -> npt.NDArray[np.float32]:
        cells.plan(positions)
        time.sleep(seconds)
        turn[0] += 7
        return rows[(np.arange(len(indices)) + turn[0]) % len(rows)]

    return _core.PythonRunner(forward, vocab_size=vocab_size)


def run(tokenizer: Spelling, vocab_size: int, branches: int, seconds: float, constraint: Any) -> tuple[Any, float]:
    """Stats of generating on all branches together, and the seconds that the steps took."""
    cells = _core.Cells(8192)
    engine = Engine(
        slow_program(cells, vocab_size, seconds),
        cells,
        token_bytes=tokenizer.token_bytes(vocab_size),
        eos_ids=tokenizer.eos_ids,
        special_ids=tokenizer.special_ids,
    )
    for branch in range(branches):
        engine.extend(engine.create()[0], [65 + branch, 66])
    while not engine.step().idle:
        pass
    options = GenerateOptions(max_tokens=MOST_TOKENS, constraint=constraint)
    for branch in range(branches):
        engine.generate(branch, options)
    before, start = engine.stats(), time.perf_counter()
    while not engine.step().idle:
        pass
    took = time.perf_counter() - start
    after = engine.stats()
    return {name: getattr(after, name) - getattr(before, name) for name in COUNTED}, took


def steps_table(branches: int, forward_ms: float) -> Table:
    """Time per step at each vocabulary."""
    table = Table(title=f"{branches} branches, forwards of {forward_ms:g} ms; milliseconds per step")
    for column in ("vocabulary", *COLUMNS):
        table.add_column(column, justify="right")
    for size in VOCABULARIES:
        tokenizer = Spelling(size)
        constraint = ConstraintCompiler(tokenizer, size).compile(PERSON)  # type: ignore[arg-type]
        run(tokenizer, size, branches, 0, constraint)  # warms llguidance's lexer, as the first outputs of a program do
        stats, took = run(tokenizer, size, branches, forward_ms / 1e3, constraint)
        table.add_row(f"{size:,}", *columns(stats, took))
    return table


def columns(stats: dict[str, float], took: float) -> list[str]:
    """Of steps that took so many seconds."""
    per_step = 1e3 / stats["steps"]
    return [
        f"{took * per_step:.2f}",
        f"{stats['mask_seconds'] * per_step:.3f}",
        f"{stats['constraint_seconds'] * per_step:.3f}",
        f"{100 * stats['constraint_seconds'] / took:.1f}%",
        f"{stats['forwards'] / stats['generated']:.3f}",
    ]


def give_words(folder: Path) -> None:
    """Makes the vocabulary of an exported shape one of words, as models have: what grammars cost follows from it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    bytes_as_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = [*KEYS, *(word.decode() for word in Spelling(VOCAB).words if word.isascii())]
    spelled = ["".join(piece for piece, _ in bytes_as_text.pre_tokenize_str(text)) for text in texts]
    words = list(dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *spelled]))[:VOCAB]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


async def shape_table(folder: Path, branches: int, rounds: int) -> Table:
    """The model's own steps, with free text and with an object, in turns."""
    table = Table(title=f"{branches} branches of a model of the shape of Qwen3-0.6B; milliseconds per step")
    for column in ("output", *COLUMNS):
        table.add_column(column, justify="right")
    outputs: dict[str, Any] = {"text": str, "object": PERSON}
    sums = {name: dict.fromkeys((*COUNTED, "took"), 0.0) for name in outputs}
    async with kv.Context.open(folder, capacity=4096) as ctx:
        trunk = await ctx.branch(prompt(64))
        for turn in range(rounds + 1):
            for name, output in outputs.items():
                stats, took = await together(ctx, trunk, branches, output, seed=turn * branches)
                if turn == 0:  # compiles the grammar, and warms its lexer
                    continue
                for counted, value in {**stats, "took": took}.items():
                    sums[name][counted] += value
    for name, stats in sums.items():
        table.add_row(name, *columns(stats, stats["took"]))
    return table


async def together(
    ctx: kv.Context, trunk: kv.Branch, branches: int, output: Any, seed: int
) -> tuple[dict[str, float], float]:
    """Stats of generating on so many forks together, and the seconds that it took."""
    kids = await trunk.fork(branches)
    before, start = ctx.stats, time.perf_counter()
    await kv.gather(
        *(
            kid.generate(max_tokens=MOST_TOKENS, sampling=kv.Sampling(temperature=1, seed=seed + i), output=output)
            for i, kid in enumerate(kids)
        )
    )
    took, after = time.perf_counter() - start, ctx.stats
    for kid in kids:
        kid.close()
    return {name: getattr(after, name) - getattr(before, name) for name in COUNTED}, took


async def forwards_table() -> Table:
    """Forwards per token on nano."""
    table = Table(title="nano: forwards per token, tokens that were forced")
    for column in ("output", "tokens", "forwards per token", "forced"):
        table.add_column(column, justify="right")
    outputs = {"object": PERSON, "date": kv.Regex("[0-9]{4}-[0-9]{2}-[0-9]{2}"), "choice": kv.Regex("yes|no|no answer")}
    async with kv.Context.open(kv.models.nano(), threads=1) as ctx:
        trunk = await ctx.branch([{"role": "user", "content": "Tell me about Bo, who is 30 and lives in Oslo."}])
        for name, output in outputs.items():
            before = ctx.stats
            gen = await (await trunk.fork()).generate(output=output)
            after = ctx.stats
            tokens = len(gen.tokens)
            table.add_row(
                name,
                str(tokens),
                f"{(after.forwards - before.forwards) / tokens:.2f}",
                str(after.forced - before.forced),
            )
    return table


def main(
    branches: Annotated[int, typer.Option(help="Generations at a time.")] = 8,
    forward_ms: Annotated[float, typer.Option(help="What a forward takes in the first table.")] = 34.0,
    folder: Annotated[Path | None, typer.Option(help="Where the export is kept, or found if it exists.")] = None,
    rounds: Annotated[int, typer.Option(help="Outputs of each kind and branch in the second table.")] = 5,
) -> None:
    """Prints the tables."""
    console.print(steps_table(branches, forward_ms))
    with tempfile.TemporaryDirectory() as scratch:
        target = folder or Path(scratch) / "export"
        if not (target / "agentkv.json").exists():
            export(target)
        give_words(target)
        console.print(anyio.run(shape_table, target, branches, rounds))
    console.print(anyio.run(forwards_table))


if __name__ == "__main__":
    typer.run(main)
