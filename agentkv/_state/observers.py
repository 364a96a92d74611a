"""Observers of a Context: conversations and agents' turns, on the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .._chat.conversation import Conversation


@dataclass(frozen=True, slots=True, eq=False)
class TurnInfo:
    """One turn of an agent.

    Attributes:
        branch: id of its branch.
        instructions: the agent's instructions.
        tools: names of the tools that it may call.
    """

    branch: int
    instructions: str
    tools: Sequence[str]


class Observer(Protocol):
    """Callbacks on the event loop. They must be quick and must not raise."""

    def converse(self, branch: int, conversation: Conversation) -> None:
        """A branch has another conversation now."""

    def turn_began(self, turn: TurnInfo) -> None:
        """An agent's turn began, with a lease on its branch."""

    def turn_told(self, turn: TurnInfo, event: object) -> None:
        """An event of `kv.events` in the turn; text and reasoning events are not passed."""

    def turn_ended(self, turn: TurnInfo, rounds: int, error: BaseException | None) -> None:
        """The turn ended after `rounds` messages, with an answer or an error."""


class Observers:
    """Passes each callback on to all observers."""

    def __init__(self) -> None:
        self._all: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Adds an observer."""
        self._all = (*self._all, observer)

    def remove(self, observer: Observer) -> None:
        """Removes an observer. Idempotent."""
        self._all = tuple(each for each in self._all if each is not observer)

    def converse(self, branch: int, conversation: Conversation) -> None:
        """See Observer."""
        for observer in self._all:
            observer.converse(branch, conversation)

    def turn_began(self, turn: TurnInfo) -> None:
        """See Observer."""
        for observer in self._all:
            observer.turn_began(turn)

    def turn_told(self, turn: TurnInfo, event: object) -> None:
        """See Observer."""
        for observer in self._all:
            observer.turn_told(turn, event)

    def turn_ended(self, turn: TurnInfo, rounds: int, error: BaseException | None) -> None:
        """See Observer."""
        for observer in self._all:
            observer.turn_ended(turn, rounds, error)
