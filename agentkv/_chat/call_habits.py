"""Call spelling of a Context's model: its format, and the fallback when it writes calls otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from .._types.errors import InvalidInput
from .._types.log import log
from .._types.show import preview

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format, ParsedCall

Rescue: TypeAlias = bool | Literal["steer"]
"""True: calls in other spellings are parsed, and after some of them calls are steered. False: they are text. "steer":
calls are steered from the first message on, so that no conversation depends on earlier ones."""

STEERED_AFTER = 2
"""Number of messages with calls in another spelling, after which calls are constrained to one the model can write."""


class CallHabits:
    """The call format of one Context. After some rescues calls are steered: constrained to a spelling that can be
    parsed.

    Attributes:
        rescued: number of messages whose calls were in another spelling than the format's.
    """

    def __init__(self, find: Callable[[], Format], rescue: Rescue) -> None:
        self._find = find  # takes a few renderings
        self.rescued = STEERED_AFTER if rescue == "steer" else 0

    @property
    def format(self) -> Format:
        """Format by which messages are parsed and constrained. Raises the errors of its detection."""
        return self._own if self.rescued < STEERED_AFTER else self._steered

    def saw(self, calls: Iterable[ParsedCall]) -> None:
        """Counts a parsed message with these calls."""
        dresses = sorted({call.rescued for call in calls if call.rescued is not None})
        if not dresses:
            return
        self.rescued += 1
        if self.rescued == 1:
            log.info("the model writes calls otherwise than its format does; they are read", written_as=dresses)
        elif self.rescued == STEERED_AFTER:
            log.info("calls of this model are steered from now on: a list as JSON in a code block")

    @cached_property
    def _own(self) -> Format:
        return self._find()

    @cached_property
    def _steered(self) -> Format:
        return replace(self._own, steered=True)


def checked_rescue(rescue: object) -> Rescue:
    """Returns a valid `rescue` argument. Raises InvalidInput."""
    if not isinstance(rescue, bool) and rescue != "steer":
        raise InvalidInput(f"rescue is {preview(rescue)}, but it must be True, False or 'steer'")
    return rescue
