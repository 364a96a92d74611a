"""Prompts that are being read: what a stream tells of them before the first token comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from .._chat.rerender import Continuation
    from .._context.prefill import Prefilling

PROGRESS_SECONDS = 0.25  # how often a client that asks for it is told how far its prompt is


@dataclass(frozen=True, slots=True)
class Begun:
    """A prompt that fits, and that the model begins to read.

    Attributes:
        tokens: of the prompt.
        cached: so many of them are in the cache already.
    """

    tokens: list[int]
    cached: int


Progress = Callable[[int], Awaitable[None]]
"""Takes how many tokens of the prompt are read, those that were in the cache included."""

Begin = Callable[[Begun], Awaitable[Progress | None]]
"""Tells that a prompt has begun, and returns what tells how far it is."""


async def untold(begun: Begun) -> None:
    """Nobody is told."""


class Reading:
    """One prompt, which may have to be begun again where others took its room: that is told once."""

    def __init__(self, begin: Begin) -> None:
        self._begin: Begin | None = begin
        self._progress: Progress | None = None

    async def finish(self, prompt: Prefilling, made: Continuation) -> None:
        """Returns once the prompt is read; raises what that failed with."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._progress = await begin(Begun(made.added, prompt.reused))
        if self._progress is not None:
            await self._watch(prompt, self._progress)
        await prompt.computed()
        if self._progress is not None:
            await self._progress(len(made.added))

    async def _watch(self, prompt: Prefilling, progress: Progress) -> None:
        read = prompt.reused
        await progress(read)
        while not prompt.settled.is_set():
            if (now := await prompt.length()) > read:
                await progress(read := now)
            with anyio.move_on_after(PROGRESS_SECONDS):
                await prompt.settled.wait()
