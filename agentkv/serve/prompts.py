"""Prompts being prefilled, and what a stream reports before the first token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from .._chat.rerender import PromptUpdate
    from .._context.prefill import PromptPrefill

PROGRESS_SECONDS = 0.25  # between progress reports to a client that wants them


@dataclass(frozen=True, slots=True)
class PromptBegun:
    """A prompt that fits and whose prefill begins.

    Attributes:
        tokens: of the prompt.
        cached: number of these that are in the cache already.
    """

    tokens: list[int]
    cached: int


Progress = Callable[[int], Awaitable[None]]
"""Takes the number of prompt tokens prefilled so far, cached ones included."""

Begin = Callable[[PromptBegun], Awaitable[Progress | None]]
"""Called once when a prefill begins; returns the callback for its progress, or None."""


async def untold(begun: PromptBegun) -> None:
    """Ignores the beginning of a prompt and asks for no progress."""


class Reading:
    """Prefill of one prompt. It may start again where others took its room; `begin` is called only once."""

    def __init__(self, begin: Begin) -> None:
        self._begin: Begin | None = begin
        self._progress: Progress | None = None

    async def finish(self, prompt: PromptPrefill, made: PromptUpdate) -> None:
        """Waits until the prompt is prefilled and reports progress. Raises the error that the prefill failed with."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._progress = await begin(PromptBegun(made.added, prompt.reused))
        if self._progress is not None:
            await self._watch(prompt, self._progress)
        await prompt.computed()
        if self._progress is not None:
            await self._progress(len(made.added))

    async def _watch(self, prompt: PromptPrefill, progress: Progress) -> None:
        read = prompt.reused
        await progress(read)
        while not prompt.settled.is_set():
            if (now := await prompt.length()) > read:
                await progress(read := now)
            with anyio.move_on_after(PROGRESS_SECONDS):
                await prompt.settled.wait()
