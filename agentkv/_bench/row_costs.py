"""Facts of a model that results depend on, among them how long a forward takes on this machine, by its rows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._context.context import Context
from .._types.sampling import Sampling
from ..spec import Draft

ROWS = (1, 2, 4, 8, 16, 32)
_ROUNDS = 6  # the first warms up
_TOKENS = 5  # per round and number of rows
_TRUNK = 256  # tokens before them


@dataclass(frozen=True, slots=True)
class _Siblings:
    """Drafts of so many nodes, all in the place of the next token."""

    nodes: int
    adaptive: bool = False

    def propose(self, branch: int, tokens: NDArray[np.int32], limit: int) -> Draft | None:
        count = min(self.nodes, limit)
        return Draft(range(count), [-1] * count) if count else None


async def row_costs(ctx: Context) -> dict[int, float]:
    """Median seconds of a forward that decodes 1, 2, 4, 8, 16 and 32 rows, in turns, by the number of rows.

    Needs some 500 free cells. Raises as `Branch.generate`.
    """
    sampling = Sampling(temperature=0, logit_bias=dict.fromkeys(ctx.tokenizer.eos_ids, -100.0))
    trunk = await ctx.branch([token % ctx.tokenizer.vocab_size for token in range(1, _TRUNK)])
    strategies: dict[int, Any] = {rows: _Siblings(rows - 1) if rows > 1 else None for rows in ROWS}
    began = 0.0
    for turn in range(_ROUNDS):
        for strategy in strategies.values():
            async with await trunk.fork() as branch:
                await branch.generate(max_tokens=_TOKENS, sampling=sampling, speculative=strategy)
        if turn == 0:
            began = ctx.steps[-1].began
    seconds: dict[int, list[float]] = defaultdict(list)
    for step in ctx.steps:
        if step.began > began and step.forwards == 1 and not step.prefill_rows:
            seconds[step.decode_rows].append(step.forward_seconds)
    await trunk.close()
    return {rows: median(seconds[rows]) for rows in ROWS if seconds[rows]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of an open model on this machine.

    Attributes:
        backend, quantization, bit_exact: as of `Context.model_info`.
        row_ms: milliseconds of a forward by its rows, as `row_costs`.
    """

    backend: str
    quantization: str
    bit_exact: bool
    row_ms: dict[int, float]


async def model_facts(model: Path, threads: int | None) -> ModelFacts:
    """The facts of a model, measured. Raises as `Context.open` and `Branch.generate`."""
    async with Context.open(model, capacity=1024, threads=threads) as ctx:
        info, costs = ctx.model_info, await row_costs(ctx)
    return ModelFacts(
        backend=info.backend,
        quantization=info.quantization,
        bit_exact=info.bit_exact,
        row_ms={rows: round(1000 * seconds, 4) for rows, seconds in costs.items()},
    )
