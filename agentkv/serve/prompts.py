"""The prompt of a request: checks before it is prefilled, as the status is 200 after that, and the prefill itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from agentkv_runtime.formats.parsed import CallOpened

from .._context.generate import GenerationRequest
from .._model.generate_options import GenerateOptions
from .._types.errors import InvalidInput

if TYPE_CHECKING:
    from .._chat.conversation import Conversation
    from .._chat.rerender import PromptUpdate
    from .._context.core import ContextCore
    from .._context.prefill import PromptPrefill
    from .completion import ReplyRequest

PROGRESS_SECONDS = 0.25  # between progress reports to a client that wants them
NO_BRANCH = -1  # id in a request that is checked before its branch exists
_SOME_TEXT = "."


def begun_reply(core: ContextCore, conversation: Conversation, log: Sequence[int]) -> str:
    """The text that the message begins with: from the template, such as `<think>`, or from the client."""
    form, opened = core.chat.format, conversation.tail
    begun = form.template.begun_in(opened.text if opened else "")
    said = core.chat.detokenizer.visible_bytes(log[conversation.end :]).decode("utf-8", "replace")
    parser = form.parser(prefix=begun + said)
    if parser.in_call or any(isinstance(delta, CallOpened) for delta in parser.deltas_of_prefix):
        return begun + _SOME_TEXT  # text of the client is never parsed as a call
    return begun + said


async def check_reply(core: ContextCore, reply_request: ReplyRequest, update: PromptUpdate) -> None:
    """Raises ApiError or InvalidInput where the request cannot be generated behind this prompt."""
    assert update.conversation is not None
    prefix = begun_reply(core, update.conversation, update.added)
    options = GenerateOptions.checked(**reply_request.options(1))
    constraint = reply_request.output_constraint(core.chat.format, prefix)
    request = GenerationRequest.checked(NO_BRANCH, core, options, constraint, waits_for="room")
    try:
        await request.prepare()
    except InvalidInput:
        reply_request.check_tools()
        raise


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

    async def finish(self, prompt: PromptPrefill, update: PromptUpdate) -> None:
        """Waits until the prompt is prefilled and reports progress. Raises the error that the prefill failed with."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._progress = await begin(PromptBegun(update.added, prompt.reused))
        if self._progress is not None:
            await self._watch(prompt, self._progress)
        await prompt.computed()
        if self._progress is not None:
            await self._progress(len(update.added))

    async def _watch(self, prompt: PromptPrefill, progress: Progress) -> None:
        read = prompt.reused
        await progress(read)
        while not prompt.settled.is_set():
            if (now := await prompt.length()) > read:
                await progress(read := now)
            with anyio.move_on_after(PROGRESS_SECONDS):
                await prompt.settled.wait()
