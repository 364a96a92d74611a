"""How the model of a Context writes calls: by its format, and what is made of it where it does not keep to that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from .._types.errors import InvalidInput
from .._types.log import log
from .._types.show import shown

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format, ParsedCall

Rescue: TypeAlias = bool | Literal["steer"]
"""True: calls in other spellings are calls, and after some of them calls are steered. False: they are text. "steer":
calls are steered from the first message on, so that no conversation depends on those before it."""

STEERED_AFTER = 2
"""Messages with calls in another spelling, after which calls are held to one that the model can write."""


class CallHabits:
    """The call format of one Context. After some rescues it is steered: further messages are held to calls that read.

    Attributes:
        rescued: messages whose calls were in another spelling than the format's.
    """

    def __init__(self, find: Callable[[], Format], rescue: Rescue) -> None:
        self._find = find  # takes a few renderings
        self.rescued = STEERED_AFTER if rescue == "steer" else 0

    @property
    def format(self) -> Format:
        """How messages are read and held. Raises as the search for it does."""
        return self._own if self.rescued < STEERED_AFTER else self._steered

    def saw(self, calls: Iterable[ParsedCall]) -> None:
        """A message was read: these are its calls."""
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
    """Raises InvalidInput for what is no way to rescue calls."""
    if not isinstance(rescue, bool) and rescue != "steer":
        raise InvalidInput(f"rescue is {shown(rescue)}, but it must be True, False or 'steer'")
    return rescue
