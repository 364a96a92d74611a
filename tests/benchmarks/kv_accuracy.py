"""What int8 and int4 caches lose against fp32: attention over random rows with outlier channels, and nano's logits.

"plain" is a row's integers without the rotation: the largest magnitude is 127, or 7. Run by hand:
    python tests/benchmarks/kv_accuracy.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[2]))

import agentkv as kv
from examples.nano.evaluate import trials
from tests import code_rows

Double = npt.NDArray[np.float64]
DIM, CELLS, QUERIES = 128, 512, 64


def plain(rows: npt.NDArray[np.float32], kv_dtype: str) -> Double:
    """A row's own integers times one scale."""
    top = 127 if kv_dtype == "int8" else 7
    scale = np.abs(rows).max(-1, keepdims=True).astype(np.float64) / top
    return np.rint(rows / scale) * scale


def attention(q: Double, k: Double, v: Double) -> Double:
    """softmax(q k) v."""
    scores = q @ k.T / np.sqrt(DIM)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def attention_errors(outlier: float, channels: int) -> dict[str, float]:
    """Relative error of attention where some channels of K carry a mean of `outlier` deviations, and V's spread it."""
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal((n, DIM)).astype(np.float32) for n in (QUERIES, CELLS, CELLS))
    hot = random.choice(DIM, channels, replace=False)
    k[:, hot] += outlier * random.choice([-1, 1], channels)
    v[:, hot] *= max(1, outlier / 2)
    q *= 2  # attention that looks somewhere
    want = attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
    errors = {}
    for kv_dtype in ("int8", "int4"):
        for name, kept in (("rotated", code_rows.kept), ("plain", plain)):
            got = attention(kept(q, "int8"), kept(k, kv_dtype), kept(v, kv_dtype))
            errors[f"{kv_dtype} {name}"] = float(np.linalg.norm(got - want) / np.linalg.norm(want))
    return errors


async def nano_logits(kv_dtype: str, prompts: list[list[int]]) -> list[npt.NDArray[np.float32]]:
    """The row after each of the last 32 tokens of each prompt."""
    rows = []
    async with kv.Context.open(kv.models.nano(), capacity=4096, kv_dtype=kv_dtype, threads=1) as ctx:
        for prompt in prompts:
            async with await ctx.branch(prompt[:-32]) as branch:
                for token in prompt[-32:]:
                    await branch.extend([token])
                    rows.append(await branch.logits())
    return rows


async def nano(n: int) -> None:
    """KL divergence and agreement of the most probable token, against an fp32 cache."""
    async with kv.Context.open(kv.models.nano(), capacity=64) as ctx:
        prompts = [
            ctx.tokenizer.apply_chat(trial.talk.messages(), tools=trial.talk.tools())
            for trial in trials(n // 8, seed=1)
        ]
    want = np.array(await nano_logits("fp32", prompts))
    for kv_dtype in ("fp16", "int8", "int4"):
        got = np.array(await nano_logits(kv_dtype, prompts))
        p, q = (rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True) for rows in (want, got))
        kl = (np.exp(p) * (p - q)).sum(-1)
        agree = (want.argmax(-1) == got.argmax(-1)).mean()
        print(
            f"nano, {kv_dtype}: {len(want)} rows, largest logit difference {np.abs(got - want).max():.3f}, KL mean "
            f"{kl.mean():.2e}, 99% below {np.quantile(kl, 0.99):.2e}; the same first token in {100 * agree:.2f}%"
        )


def main() -> None:
    """Prints a line per case."""
    for outlier, channels in ((0, 0), (5, 4), (20, 4), (50, 1), (50, 4)):
        errors = attention_errors(outlier, channels)
        shown = ", ".join(f"{name} {error:.4f}" for name, error in errors.items())
        print(f"attention, {channels} channels of {outlier} deviations: relative error {shown}")
    anyio.run(nano, 64)


if __name__ == "__main__":
    main()
