"""Approval of calls of tools with approve=True."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from .._aio.tasks import maybe_await
from .._types.errors import InvalidInput
from .._types.show import preview
from .events import ApprovalAsked
from .tool_runner import Ask

Approve: TypeAlias = Callable[[ApprovalAsked], Awaitable[bool | None] | bool | None]


def approver_of(approve: Approve | None) -> Ask:
    """Returns a function that asks the callback, which returns a bool or answers the event; None denies every call.

    Raises InvalidInput for an `approve` that is not callable.
    """
    if approve is not None and not callable(approve):
        raise InvalidInput(
            f"approve is {preview(approve)}, but it must be a function that gets a kv.events.ApprovalAsked"
        )

    async def ask(asked: ApprovalAsked) -> str | None:
        if approve is None:
            return "nobody was there to approve it"
        said = await maybe_await(approve(asked))
        if said is not None and not isinstance(said, bool):
            raise InvalidInput(
                f"approve returned {preview(said)}, but it must return True, False, or None where it answered"
            )
        if said:
            asked.approve()
        asked.passed_on()
        return await asked.answer()

    return ask
