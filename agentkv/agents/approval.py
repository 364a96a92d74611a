"""Who decides on calls of tools that say approve=True."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from .._aio.tasks import awaited
from .._types.errors import InvalidInput
from .._types.show import shown
from .events import ApprovalAsked
from .tool_runner import Ask

Approve: TypeAlias = Callable[[ApprovalAsked], Awaitable[bool | None] | bool | None]


def asking(approve: Approve | None) -> Ask:
    """Asks a callback, which returns True or False or answers the event; without one, every call is denied.

    Raises InvalidInput for what is no callback.
    """
    if approve is not None and not callable(approve):
        raise InvalidInput(
            f"approve is {shown(approve)}, but it must be a function that gets a kv.events.ApprovalAsked"
        )

    async def ask(asked: ApprovalAsked) -> str | None:
        if approve is None:
            return "nobody was there to approve it"
        said = await awaited(approve(asked))
        if said is not None and not isinstance(said, bool):
            raise InvalidInput(
                f"approve returned {shown(said)}, but it must return True, False, or None where it answered"
            )
        if said:
            asked.approve()
        asked.passed_on()
        return await asked.answer()

    return ask
