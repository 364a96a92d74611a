"""What the strategies that come with agentkv have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .._errors import InvalidInput

if TYPE_CHECKING:
    from agentkv_runtime.drafters import Drafter, DraftTarget

MOST_NODES = 64  # of one draft


class BuiltIn(ABC):
    """A strategy as settings, from which each Context opens a drafter of its own."""

    @abstractmethod
    def _open(self, target: DraftTarget) -> Drafter:
        """The drafter, made on the thread of the step loop."""


def check_adaptive(adaptive: object) -> None:
    """Raises InvalidInput for anything but a bool."""
    if not isinstance(adaptive, bool):
        raise InvalidInput(f"adaptive is {adaptive!r}, but it must be True or False")
