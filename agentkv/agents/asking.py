"""Who decides on calls of tools that say approve=True."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from .awaiting import awaited
from .calling import Ask
from .events import ApprovalAsked

Approve: TypeAlias = Callable[[ApprovalAsked], Awaitable[bool | None] | bool | None]


def asking(approve: Approve | None) -> Ask:
    """Asks a callback, which returns True or False or answers the event; without one, every call is denied."""

    async def ask(asked: ApprovalAsked) -> str | None:
        if approve is None:
            return "nobody was there to approve it"
        if await awaited(approve(asked)) is True:
            asked.approve()
        asked.passed_on()
        return await asked.answer()

    return ask
