"""A generation whose value may be refused: it is forgotten then, and asked for again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ._errors import BranchBusy, OutputIncomplete, OutputInvalid
from ._extending import Moved
from ._generation_jobs import GenerationJob
from ._overflow import run_generation

if TYPE_CHECKING:
    from ._branch import Branch
    from ._engine import StepEngine
    from ._generation import Generation
    from ._request import GenerationRequest


async def generated(branch: Branch, request: GenerationRequest, retries: int) -> Generation[Any]:
    """The generation of a request, or of one of as many others after it as `retries` says.

    Raises what the last value was refused with, after forgetting it; where another task went on with the branch
    meanwhile, it stays.
    """
    generation = await run_generation(branch, GenerationJob(request.start, request.finish))
    for attempt in range(1, retries + 1):
        if not isinstance(generation._fault, OutputInvalid) or not _is_last(generation, branch):
            break
        again, forget = request.again(attempt), _forgetting(generation, branch)

        def start(
            engine: StepEngine, again: GenerationRequest = again, forget: Callable[[StepEngine], None] = forget
        ) -> int:
            forget(engine)
            return again.start(engine)

        try:
            generation = await run_generation(branch, GenerationJob(start, again.finish))
        except (Moved, BranchBusy):
            break
    fault = generation._fault
    if fault is None or isinstance(fault, OutputIncomplete):
        return generation
    if _is_last(generation, branch):
        with suppress(Moved, BranchBusy):
            await branch._handle.call(_forgetting(generation, branch))
    raise fault


def _forgetting(generation: Generation[Any], branch: Branch) -> Callable[[StepEngine], None]:
    """Takes back what is the last of a branch now. Raises Moved or BranchBusy where another task was quicker."""
    number, end, length = branch.id, branch._handle.state.end, generation.usage.prompt_tokens

    def forget(engine: StepEngine) -> None:
        if engine.tip(number) != end:
            raise Moved
        engine.rollback(number, length)

    return forget


def _is_last(generation: Generation[Any], branch: Branch) -> bool:
    """Is what it made still the end of the branch, for us to take back?"""
    try:
        branch._handle.check_free()
    except BranchBusy:
        return False
    return not branch.offloaded and len(branch) == generation.usage.total_tokens
