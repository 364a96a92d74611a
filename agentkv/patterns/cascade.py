"""A cascade: the smallest model answers what it is sure of, and larger ones the rest."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias

import anyio

from .._aio.tasks import uncancelled
from .._context.branch import Branch
from .._context.context import Context
from .._context.model_pool import keeping_branches_of
from .._types.checks import checked_share, truth_of
from .._types.errors import InvalidInput, OutOfMemory
from .._types.results import Choice, Generation
from .._types.show import preview, safe_str
from ._shared import Attempt, Grove, T, Winner, check_functions, check_timeout, checked

Stage: TypeAlias = "Branch | Callable[[], Awaitable[Branch]]"
"""A trunk, or what opens one once it is needed."""

_ENDED = ("eos", "stop")


@dataclass(frozen=True, slots=True)
class Cascaded(Winner[T], Generic[T]):
    """Result of `cascade`.

    Attributes:
        index: which of the trunks answered, from 0.
        sure: whether it was sure; else no other one did better.
        why: a line for each trunk that was asked, in order: its probability, or why its answer does not count.
    """

    index: int
    sure: bool
    why: tuple[str, ...]


async def cascade(
    trunks: Sequence[Stage],
    attempt: Attempt[T],
    *,
    sure: float | Callable[[T], bool | Awaitable[bool]] = 0.8,
    timeout: float | None = None,
) -> Cascaded[T]:
    """Attempts a task on the first trunk, and on the next where that is not sure, and so on; trunks stay as they are.

    Each trunk is usually of another model's Context, the smallest first, with the same question. The answer of the last
    one counts as it is, where it does not fail. The score is the probability; of a check 1.0 or 0.0.

    Args:
        trunks: branches; or async functions that open one, called where it is needed: of a model that is not open yet.
            What they open is closed. Where the model has no room in `kv.open_models` beside the smaller ones, their
            answers are let go first, and no longer have the last word.
        attempt: called with a fork of each trunk.
        sure: least probability, from 0 to 1, of an answer that counts: of a `Branch.select` that of its choice among
            the choices, of a generation the geometric mean over its tokens; one that was cut is never sure. Or a
            function, plain or async, that gets the result and returns whether it counts; other results than these two
            need one.
        timeout: seconds after which an attempt that is not done is dropped; None for no limit.

    Raises:
        ExceptionGroup: every attempt failed. Where some did, the last one that came to an answer has it, unsure.
    """
    stages = _checked(trunks, attempt, sure, timeout)
    given = {stage.context for stage in stages if isinstance(stage, Branch)}
    errors: list[Exception] = []
    why: list[str] = []
    best: Cascaded[T] | None = None
    async with Grove() as grove:
        for index, stage in enumerate(stages):
            try:
                branch = grove.add(await _fork_of(stage, grove, given))
                with anyio.fail_after(timeout):
                    result = await uncancelled(attempt(branch), "an attempt")
                    score, passes, told = await _judged(result, sure)
            except Exception as error:
                errors.append(error)
                why.append(f"failed: {type(error).__name__}: {safe_str(error)}")
                continue
            why.append(told)
            best = Cascaded(branch, result, score, index, passes, tuple(why))
            if passes:
                break
        found = checked(best if best is not None and best.branch in grove else None, errors)
        return Cascaded(grove.take(found.branch), found.result, found.score, found.index, found.sure, tuple(why))


def _checked(trunks: object, attempt: object, sure: object, timeout: object) -> list[Stage]:
    """The stages. Raises InvalidInput."""
    if isinstance(trunks, Branch) or not isinstance(trunks, Sequence) or not trunks:
        raise InvalidInput(
            f"trunks is {preview(trunks)}, but it must be a list of branches, the smallest model's first"
        )
    for trunk in trunks:
        if not isinstance(trunk, Branch) and not callable(trunk):
            raise InvalidInput(f"trunks has {preview(trunk)}, but each must be a Branch, or a function that opens one")
    if not callable(sure):
        checked_share(sure, "sure")
    check_timeout(timeout)
    check_functions(attempt=attempt)
    return list(trunks)


async def _fork_of(stage: Stage, grove: Grove, given: set[Context]) -> Branch:
    if isinstance(stage, Branch):
        return await stage.fork()
    opened = await _opened(stage, grove, given)
    if not isinstance(opened, Branch):
        raise InvalidInput(f"what opens a trunk returned {preview(opened)}, but it must return a Branch")
    return await grove.add(opened).fork()


async def _opened(open_trunk: Callable[[], Awaitable[Branch]], grove: Grove, given: set[Context]) -> Branch:
    """What the function opens. Where its model has no room beside those that were asked, these are left first."""
    with keeping_branches_of(given | grove.contexts) as kept:
        try:
            return await uncancelled(open_trunk(), "what opens a trunk")
        except OutOfMemory:
            if not kept.in_the_way or grove.contexts <= given:
                raise
    grove.prune()
    with keeping_branches_of(given):
        return await uncancelled(open_trunk(), "what opens a trunk")


async def _judged(result: T, sure: float | Callable[[T], bool | Awaitable[bool]]) -> tuple[float, bool, str]:
    """The score of a result, whether it counts, and that in words."""
    if callable(sure):
        answer = sure(result)
        passes = truth_of(await uncancelled(answer, "sure") if inspect.isawaitable(answer) else answer, "sure")
        return float(passes), passes, "the check took it" if passes else "the check refused it"
    if isinstance(result, Generation) and result.finish_reason not in _ENDED:
        return 0.0, False, f"was cut ({result.finish_reason})"
    probability = _probability(result)
    passes = probability >= sure
    return probability, passes, f"probability {probability:.2f}" + ("" if passes else f", below {sure:g}")


def _probability(result: object) -> float:
    """The probability of a choice among its choices, or of a token of a generation in the geometric mean."""
    if isinstance(result, Choice):
        return 1 / math.fsum(math.exp(min(other - result.logprob, 0.0)) for other in result.logprobs)
    if isinstance(result, Generation):
        return math.exp(math.fsum(result.logprobs) / max(len(result.logprobs), 1))
    raise InvalidInput(
        f"the probability of {preview(result)} is not known; return a choice of `select` or a generation, or pass a "
        "function as sure"
    )
