"""What grammars cost: time per step at several vocabularies, for generations that ride together; forwards per token.

Run by hand: `python tests/benchmarks/bench_grammar.py [--branches 8] [--forward-ms 34]`. The steps are the engine's own
over a forward that takes as long as is said (34 ms: eight branches of a model of the shape of Qwen3-0.6B on two cores)
and gives random logits, so that outputs take every turn that the grammar leaves open. The last table is nano's.
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Sequence
from typing import Annotated, Any

import anyio
import numpy as np
import numpy.typing as npt
import typer
from agentkv_runtime import _core
from agentkv_runtime.engine import Engine, GenerateOptions
from rich.console import Console
from rich.table import Table

import agentkv as kv
from agentkv.output._driver import Grammars

VOCABULARIES = (512, 32_000, 151_936)
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
        self._words = [*words, b"<|end|>"]
        self._ids = {word: i for i, word in enumerate(self._words)}
        self._longest = max(map(len, self._words))
        self.eos_ids = self.special_ids = [size - 1]
        self.added_ids = {"<|end|>": size - 1}

    def token_bytes(self, size: int) -> list[bytes]:
        return self._words[:size]

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
    of = ("steps", "forwards", "generated", "forced", "constraint_seconds", "mask_seconds", "overhead_seconds")
    return {name: getattr(after, name) - getattr(before, name) for name in of}, took


def steps_table(branches: int, forward_ms: float) -> Table:
    """Time per step at each vocabulary."""
    table = Table(title=f"{branches} branches, forwards of {forward_ms:g} ms; milliseconds per step")
    for column in ("vocabulary", "waited for", "masks beside", "all of the step's own", "without", "share of a step"):
        table.add_column(column, justify="right")
    for size in VOCABULARIES:
        tokenizer = Spelling(size)
        constraint = Grammars(tokenizer, size).native(PERSON)  # type: ignore[arg-type]
        plain, _ = run(tokenizer, size, branches, forward_ms / 1e3, None)
        run(tokenizer, size, branches, 0, constraint)  # warms llguidance's lexer, as the first outputs of a program do
        stats, took = run(tokenizer, size, branches, forward_ms / 1e3, constraint)
        own = 1e3 * stats["overhead_seconds"] / stats["steps"]
        without = 1e3 * plain["overhead_seconds"] / plain["steps"]
        table.add_row(
            f"{size:,}",
            f"{1e3 * stats['constraint_seconds'] / stats['steps']:.3f}",
            f"{1e3 * stats['mask_seconds'] / stats['steps']:.3f}",
            f"{own:.3f}",
            f"{without:.3f}",
            f"{100 * (own - without) * stats['steps'] / 1e3 / took:.1f}%",
        )
    return table


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
    forward_ms: Annotated[float, typer.Option(help="What a forward takes.")] = 34.0,
) -> None:
    """Prints both tables."""
    console.print(steps_table(branches, forward_ms))
    console.print(anyio.run(forwards_table))


if __name__ == "__main__":
    typer.run(main)
