"""How the model of a Context writes calls: by its format, and what is made of it where it does not keep to that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from ._log import log

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format, ParsedCall

STEERED_AFTER = 2
"""Messages with calls in another spelling, after which calls are held to one that the model can write."""


class CallHabits:
    """The call format of one Context. After some rescues it is steered: further messages are held to calls that read.

    Attributes:
        rescued: messages whose calls were in another spelling than the format's.
    """

    def __init__(self, find: Callable[[], Format]) -> None:
        self._find = find  # takes a few renderings
        self.rescued = 0

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
