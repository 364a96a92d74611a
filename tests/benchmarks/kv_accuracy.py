"""What int8 and int4 caches lose against fp32: attention over random rows, logits of random models whose keys have
outlier channels, and logits of nano; beside the same integers without the Hadamard transform.

Run by hand: python tests/benchmarks/kv_accuracy.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import numpy as np
import numpy.typing as npt
import torch
from agentkv_runtime import _core
from agentkv_runtime.backends import keys_and_values
from agentkv_runtime.export.quiet import quiet_libraries
from agentkv_runtime.torch_backend.cache import TorchCache
from agentkv_runtime.torch_backend.model import TorchModel
from agentkv_runtime.torch_backend.rows import CodeRows
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

import agentkv as kv
from examples.nano.evaluate import trials
from tests import code_rows
from tests.models import tiny_model, tiny_spec, write_tokenizer

Float = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]
DIM, CELLS, QUERIES = 128, 512, 64
OUTLIERS = ((0, 0), (5, 4), (20, 4), (50, 1), (50, 4))  # standard deviations, and how many channels have such a mean
PLAIN = " plain"  # a kv_dtype without the transform
KV_DTYPES = ("fp16", "int8", "int8" + PLAIN, "int8/int4", "int4", "int4" + PLAIN)
NANO_ROWS, NANO_PROMPTS = 32, 8
console = Console(width=120)


class PlainRows(CodeRows):
    """Codes of rows as they are."""

    def turn(self, rows: torch.Tensor) -> torch.Tensor:
        """As they are."""
        return rows

    turn_back = turn


def plain(rows: Float, kv_dtype: str) -> Double:
    """A row's own integers times one scale: the largest magnitude is 127, or 7."""
    top = 127 if kv_dtype == "int8" else 7
    scale = np.abs(rows).max(-1, keepdims=True).astype(np.float64) / top
    return np.rint(rows / scale) * scale


def attention(q: Double, k: Double, v: Double) -> Double:
    """softmax(q k) v."""
    scores = q @ k.T / np.sqrt(DIM)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def attention_error(outlier: float, channels: int, kv_dtype: str) -> float:
    """Relative error of attention where some channels of K carry a mean of `outlier` deviations, and V's spread it."""
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal((n, DIM)).astype(np.float32) for n in (QUERIES, CELLS, CELLS))
    hot = random.choice(DIM, channels, replace=False)
    k[:, hot] += outlier * random.choice([-1, 1], channels)
    v[:, hot] *= max(1, outlier / 2)
    q *= 2  # attention that looks somewhere
    want = attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
    keys, values = keys_and_values(kv_dtype.removesuffix(PLAIN))
    kept = plain if kv_dtype.endswith(PLAIN) else code_rows.kept
    got = attention(kept(q, "int8"), kept(k, keys), kept(v, values))
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def torch_logits(model: TorchModel, prompts: Sequence[Sequence[int]], rows: int, kv_dtype: str) -> Float:
    """Logits after each of the last tokens of each prompt, from the torch byte layer, which can go without turning."""
    found = []
    for prompt in prompts:
        n = len(prompt)
        cells = _core.Cells(n)
        bits = kv_dtype.removesuffix(PLAIN)
        cache = TorchCache(cells, n_layers=model.cached.n_layers, capacity=n, kv_dtype=bits, min_chunk=n)
        if bits != kv_dtype:
            cache.key_rows = cache.value_rows = PlainRows(8 if bits == "int8" else 4)
        cells.begin_step([0] * n)
        logits, _ = model.forward(cache, prompt, range(n), range(n - rows, n))
        cells.commit_step()
        found.append(logits.numpy())
    return np.concatenate(found)


async def engine_logits(prompts: list[list[int]], rows: int, kv_dtype: str, quantize_after: int | None) -> Float:
    """The same of nano as it ships, from the CPU byte layer."""
    found = []
    async with kv.Context.open(
        kv.models.nano(), capacity=4096, kv_dtype=kv_dtype, quantize_after=quantize_after, threads=1
    ) as ctx:
        for prompt in prompts:
            async with await ctx.branch(prompt[:-rows]) as branch:
                for token in prompt[-rows:]:
                    await branch.extend([token])
                    found.append(await branch.logits())
    return np.array(found)


def write_random_model(folder: Path, outlier: float, channels: int) -> Path:
    """A Qwen2 of random weights, some of whose keys' channels have a large mean, in every head and layer.

    They are channels that rotate slowest, as in trained models: the mean is the same at every position.
    """
    spec = tiny_spec("qwen2", layers=4, hidden=256, intermediate=512, heads=4, kv_heads=2, head_dim=64)
    model = tiny_model(spec)
    with torch.no_grad():
        for layer in model.model.layers:
            bias = layer.self_attn.k_proj.bias.view(spec.kv_heads, spec.head_dim)
            bias[:, spec.head_dim // 2 - channels : spec.head_dim // 2] += 1.2 * outlier  # a key's deviation is 1.2
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def compared(want: Float, got: Float) -> Iterator[str]:
    """The largest difference, the KL divergence, and how often the most probable token is the same."""
    p, q = (rows - np.logaddexp.reduce(rows.astype(np.float64), -1, keepdims=True) for rows in (want, got))
    kl = (np.exp(p) * (p - q)).sum(-1)
    yield f"{np.abs(got - want).max():.3f}"
    yield f"{kl.mean():.1e}"
    yield f"{np.quantile(kl, 0.99):.1e}"
    yield f"{100 * (want.argmax(-1) == got.argmax(-1)).mean():.2f}%"


def outliers_shown(outlier: float, channels: int) -> str:
    """What a row of a table is about."""
    return f"{channels} of {outlier} deviations" if channels else "no outliers"


def attention_table() -> Table:
    """Errors of attention by outliers."""
    table = Table(title="attention, relative error against fp64")
    for name in ("channels of K with such a mean", *KV_DTYPES[1:]):
        table.add_column(name)
    for outlier, channels in OUTLIERS:
        errors = (f"{attention_error(outlier, channels, kv_dtype):.4f}" for kv_dtype in KV_DTYPES[1:])
        table.add_row(outliers_shown(outlier, channels), *errors)
    return table


def logits_table() -> Table:
    """What becomes of logits, by model."""
    table = Table(title="logits against those of an fp32 cache")
    for name in ("model", "rows", "cache", "largest difference", "KL, mean", "KL, 99% below", "same first token"):
        table.add_column(name)

    def add(name: str, want: Float, got: dict[str, Float]) -> None:
        for kv_dtype, rows in got.items():
            table.add_row(name, str(len(rows)), kv_dtype, *compared(want, rows))
        table.add_section()

    def of_torch(name: str, folder: Path, prompts: Sequence[Sequence[int]], rows: int) -> None:
        model = TorchModel(folder)
        got = {kv_dtype: torch_logits(model, prompts, rows, kv_dtype) for kv_dtype in ("fp32", *KV_DTYPES)}
        add(name, got.pop("fp32"), got)

    random = np.random.default_rng(5)
    prompts = [random.integers(3, 384, 256).tolist() for _ in range(4)]
    for outlier, channels in OUTLIERS:
        with tempfile.TemporaryDirectory() as name:
            folder = write_random_model(Path(name), outlier, channels)
            of_torch(f"random, {outliers_shown(outlier, channels)}", folder, prompts, 192)
    tokenizer = anyio.run(nanos_tokenizer)
    talks = [trial.talk for trial in trials(NANO_PROMPTS, seed=1)]
    asked = [tokenizer.apply_chat(talk.messages(), tools=talk.tools()) for talk in talks]
    of_torch("nano, before quantisation", Path(__file__).parents[2] / "examples/nano/weights", asked, NANO_ROWS)
    caches: dict[str, tuple[str, int | None]] = {
        **{kv_dtype: (kv_dtype, None) for kv_dtype in ("fp32", "fp16", "int8", "int8/int4", "int4")},
        **{f"fp16, int8 after {n}": ("fp16", n) for n in (256, 64)},
    }
    shipped = {name: anyio.run(engine_logits, asked, NANO_ROWS, *cache) for name, cache in caches.items()}
    add("nano, as it ships", shipped.pop("fp32"), shipped)
    return table


async def nanos_tokenizer() -> kv.Tokenizer:
    async with kv.Context.open(kv.models.nano(), capacity=64) as ctx:
        return ctx.tokenizer


def main() -> None:
    """Prints both tables."""
    torch.set_num_threads(1)  # two wait for each other where other processes hold a core
    console.print(attention_table())
    with quiet_libraries():
        table = logits_table()
    console.print(table)


if __name__ == "__main__":
    main()
