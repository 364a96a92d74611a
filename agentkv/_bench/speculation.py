"""Comparison of strategies: each in a Context of its own, all on the same prompts, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from .._aio.tasks import gather
from .._context.branch import Branch
from .._context.context import Context
from .._model.drafters import Speculative
from .._types.results import Generation
from .._types.sampling import Sampling
from .prompts import BenchPrompt
from .results import PLAIN, BenchResult, Sample
from .shares import StepShares

DEFAULT_TOKENS = 128  # per prompt that does not say how many it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """Parameters of a measurement.

    Attributes:
        branches: prompts that are gone on with at the same time.
        max_tokens: tokens per prompt, at most; None for what each prompt needs.
        temperature: 0 is greedy.
        repeat: number of repetitions.
        capacity: cells of each cache.
        threads: threads of the model; None for its default.
    """

    branches: int
    max_tokens: int | None
    temperature: float
    repeat: int
    capacity: int
    threads: int | None

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters, seeded so that all strategies draw the same random numbers."""
        return Sampling(temperature=self.temperature, seed=0)

    def tokens_of(self, prompt: BenchPrompt) -> int:
        """Number of tokens that a prompt is continued by, at most."""
        needed = prompt.max_tokens or self.max_tokens or DEFAULT_TOKENS
        return needed if self.max_tokens is None else min(needed, self.max_tokens)

    def groups(self, prompts: Sequence[BenchPrompt]) -> list[Sequence[BenchPrompt]]:
        """The prompts, `branches` at a time."""
        return [prompts[i : i + self.branches] for i in range(0, len(prompts), self.branches)]


@dataclass(frozen=True, slots=True)
class _Opened:
    """One strategy's Context, and what its branches have in the steps."""

    ctx: Context
    shares: StepShares


async def measure(
    model: Path,
    strategies: Mapping[str, Speculative],
    work: str,
    prompts: Sequence[BenchPrompt],
    settings: BenchSettings,
    progress: Callable[[], None] = lambda: None,
) -> list[BenchResult]:
    """Measures plain decoding and each strategy over all prompts of a kind of work, `settings.branches` at a time.

    Each repetition begins in new Contexts, so that nothing is drafted from an earlier answer. The first eighth of the
    groups is a warm-up and not measured. Calls `progress` after each generation of a group. Raises as `Context.open`
    and `Branch.generate` do.
    """
    everyone: dict[str, Speculative | None] = {PLAIN: None, **strategies}
    names = list(everyone)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    groups = settings.groups(prompts)
    warm = len(groups) // 8
    for _ in range(settings.repeat):
        async with AsyncExitStack() as stack:
            opened = {name: await _open(stack, model, everyone[name], prompts, settings) for name in names}
            for number, group in enumerate(groups):
                for turn in range(len(names)):
                    name = names[(number + turn) % len(names)]  # no strategy always runs first
                    sample = await _sample(opened[name], number, group, settings)
                    if number >= warm:
                        samples[name].append(sample)
                    progress()
    return [BenchResult.of(work, name, samples[name], plain=samples[PLAIN]) for name in names]


async def _open(
    stack: AsyncExitStack,
    model: Path,
    strategy: Speculative | None,
    prompts: Sequence[BenchPrompt],
    settings: BenchSettings,
) -> _Opened:
    """A Context that has run a forward and compiled what the prompts' answers keep to: both are slow the first time."""
    opening = Context.open(model, capacity=settings.capacity, threads=settings.threads, speculative=strategy)
    ctx = await stack.enter_async_context(opening)
    outputs = [prompt.output for prompt in prompts if prompt.schema is not None] or [str]
    for output in outputs:
        async with await ctx.branch([0]) as branch:
            await branch.generate(max_tokens=2, output=output)
    return _Opened(ctx, await StepShares.of(ctx))


async def _sample(opened: _Opened, number: int, group: Sequence[BenchPrompt], settings: BenchSettings) -> Sample:
    ctx = opened.ctx
    branches = [await prompt.branch(ctx) for prompt in group]
    opened.shares.take()
    before = ctx.stats
    start = perf_counter()
    outs = await gather(*(_go_on(*each, settings) for each in zip(branches, group, strict=True)))
    seconds = perf_counter() - start
    after = ctx.stats
    shares = opened.shares.take()
    await ctx.keep()
    return Sample(
        group=number,
        seconds=seconds,
        tokens=sum(len(out.tokens) - 1 for out in outs),
        forwards=after.forwards - before.forwards,
        rides=len(shares),
        drafted=after.drafted - before.drafted,
        accepted=after.accepted - before.accepted,
        drafts=tuple(share.accepted for share in shares if share.drafted),
        draft_seconds=after.draft_seconds - before.draft_seconds,
        output=tuple(tuple(out.tokens) for out in outs),
    )


async def _go_on(branch: Branch, prompt: BenchPrompt, settings: BenchSettings) -> Generation[Any]:
    tokens = settings.tokens_of(prompt)
    return await branch.generate(max_tokens=tokens, sampling=settings.sampling, output=prompt.output)
