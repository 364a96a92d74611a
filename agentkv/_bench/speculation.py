"""Comparison of strategies: each in a Context of its own, all on the same prompts, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from .._aio.tasks import gather
from .._context.context import Context
from .._model.drafters import Speculative
from .._types.results import Generation
from .._types.sampling import Sampling
from .prompts import BenchPrompt
from .results import PLAIN, BenchResult, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """Parameters of a measurement."""

    branches: int
    max_tokens: int
    temperature: float
    repeat: int
    capacity: int
    threads: int | None

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters, seeded so that all strategies draw the same random numbers."""
        return Sampling(temperature=self.temperature, seed=0)


async def measure(
    model: Path,
    strategies: Mapping[str, Speculative],
    prompts: Sequence[BenchPrompt],
    settings: BenchSettings,
    progress: Callable[[], None] = lambda: None,
) -> list[BenchResult]:
    """Measures plain decoding and each strategy over all prompts, `settings.branches` at a time.

    Each repetition begins in new Contexts, so that nothing is drafted from an earlier answer. The first eighth of the
    groups is a warm-up and not measured. Calls `progress` after each generation of a group. Raises as `Context.open`
    and `Branch.generate` do.
    """
    everyone: dict[str, Speculative | None] = {PLAIN: None, **strategies}
    names = list(everyone)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    groups = [prompts[i : i + settings.branches] for i in range(0, len(prompts), settings.branches)]
    warm = len(groups) // 8
    for _ in range(settings.repeat):
        async with AsyncExitStack() as stack:
            contexts = {
                name: await stack.enter_async_context(
                    Context.open(
                        model, capacity=settings.capacity, threads=settings.threads, speculative=everyone[name]
                    )
                )
                for name in names
            }
            for number, group in enumerate(groups):
                for turn in range(len(names)):
                    name = names[(number + turn) % len(names)]  # no strategy always runs first
                    sample = await _sample(contexts[name], number, group, settings)
                    if number >= warm:
                        samples[name].append(sample)
                    progress()
    return [BenchResult.of(name, samples[name], plain=samples[PLAIN]) for name in names]


async def _sample(ctx: Context, number: int, group: Sequence[BenchPrompt], settings: BenchSettings) -> Sample:
    branches = [await prompt.branch(ctx) for prompt in group]
    before = ctx.stats
    start = perf_counter()
    outs: list[Generation] = await gather(
        *(branch.generate(max_tokens=settings.max_tokens, sampling=settings.sampling) for branch in branches)
    )
    seconds = perf_counter() - start
    after = ctx.stats
    forwards = after.forwards - before.forwards
    await ctx.keep()
    return Sample(
        group=number,
        seconds=seconds,
        tokens=sum(len(out.tokens) - 1 for out in outs),
        forwards=forwards,
        rides=_rides(ctx, forwards),
        drafted=after.drafted - before.drafted,
        accepted=after.accepted - before.accepted,
        draft_seconds=after.draft_seconds - before.draft_seconds,
        output=tuple(tuple(out.tokens) for out in outs),
    )


def _rides(ctx: Context, forwards: int) -> int:
    """Sum of the branches in each of the last `forwards` forwards."""
    rides = 0
    for step in reversed(ctx.steps):
        if forwards <= 0:
            break
        rides += step.branches
        forwards -= step.forwards
    return rides
