"""A generation whose value may be refused: it is forgotten then, and asked for again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._commands import Job
from ._errors import BranchBusy, OutputIncomplete, OutputInvalid

if TYPE_CHECKING:
    from ._engine import StepEngine
    from ._generating import Generating
    from ._generation import Generation
    from ._request import GenerationRequest


async def generated(branch: Generating, request: GenerationRequest, retries: int) -> Generation[Any]:
    """The generation of a request, or of one of as many others after it as `retries` says.

    Raises what the last value was refused with, after forgetting it; where another task went on with the branch
    meanwhile, it stays.
    """
    loop = branch._loop
    generation = await loop.run(Job(request.start, request.finish))
    for attempt in range(1, retries + 1):
        if not isinstance(generation._fault, OutputInvalid) or not _is_last(generation, branch):
            break
        again, length = request.again(attempt), generation.usage.prompt_tokens

        def start(engine: StepEngine, again: GenerationRequest = again, length: int = length) -> int:
            engine.rollback(again.branch, length)
            return again.start(engine)

        generation = await loop.run(Job(start, again.finish))
    fault = generation._fault
    if fault is None or isinstance(fault, OutputIncomplete):
        return generation
    if _is_last(generation, branch):
        await loop.call(lambda engine: engine.rollback(request.branch, generation.usage.prompt_tokens))
    raise fault


def _is_last(generation: Generation[Any], branch: Generating) -> bool:
    """Is what it made still the end of the branch, for us to take back?"""
    try:
        branch._check_free()
    except BranchBusy:
        return False
    return len(branch._history) == generation.usage.total_tokens
