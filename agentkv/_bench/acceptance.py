"""Acceptance rates of a draft head's proposals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from agentkv_runtime.engine import PolicyOptions
from agentkv_runtime.folder.draft_manifest import MeasuredAcceptance

from .._context.context import Context
from .._context.handle import core_of
from .._types.errors import ContextFull, PositionsExhausted
from ..spec import Eagle
from .prompts import BenchPrompt

UNSEEN = -1.0  # rate of a level that no draft reached


async def measure_acceptance(
    model: Path,
    head: Path,
    prompts: Sequence[BenchPrompt],
    *,
    max_tokens: int = 128,
    capacity: int = 8192,
    progress: Callable[[], None] = lambda: None,
) -> MeasuredAcceptance:
    """Continues all prompts greedily and measures the acceptance of whole drafts, 16 levels deep.

    `head` is the folder of the head's draft.pte. Calls `progress` after each prompt. Raises as `Context.open`
    and `Branch.generate` do.
    """
    strategy = Eagle(head, adaptive=False)
    async with Context.open(model, capacity=capacity) as ctx:
        drafter: Any = core_of(ctx).model.speculation.drafter(strategy)
        drafter.prior = type(drafter.prior)()  # without earlier measurements

        def count_only(engine: Any) -> None:
            options = PolicyOptions(memory=float("inf"), guess_weight=1e-9, level_acceptance=UNSEEN)
            engine.set_policy(options)

        await core_of(ctx).loop.call(count_only)
        async with await ctx.branch([0]) as first:
            await first.generate(max_tokens=2, speculative=strategy)  # from here on the head observes all branches
        for prompt in prompts:
            with suppress(ContextFull, PositionsExhausted):  # prompts that are too long are skipped
                branch = await prompt.branch(ctx)
                await branch.generate(max_tokens=max_tokens, speculative=strategy)
            await ctx.keep()
            progress()

        def rates_of(engine: Any) -> Any:
            return engine.acceptance(drafter)

        rates = await core_of(ctx).loop.call(rates_of)
    return MeasuredAcceptance(
        levels=tuple(round(max(rate, 0.0), 4) for rate in takewhile(lambda rate: rate > UNSEEN / 2, rates.levels)),
        calibration=tuple(round(max(rate, 0.0), 4) for rate in rates.calibration),
    )
