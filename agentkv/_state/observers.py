"""Who watches a Context: what happens on the event loop beside the engine's verbs."""

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
        branch: number of the branch that it holds.
        instructions: those of the agent.
        tools: names of the tools that it may call.
    """

    branch: int
    instructions: str
    tools: Sequence[str]


class Observer(Protocol):
    """What one is told, on the event loop, as it happens. It must be quick, and may raise nothing."""

    def converse(self, branch: int, conversation: Conversation) -> None:
        """The tokens of a branch are those of another conversation now."""

    def turn_began(self, turn: TurnInfo) -> None:
        """An agent's turn, on a branch that it holds."""

    def turn_told(self, turn: TurnInfo, event: object) -> None:
        """What happens in it: an event of `kv.events`. Of its text and reasoning nothing is told."""

    def turn_ended(self, turn: TurnInfo, rounds: int, error: BaseException | None) -> None:
        """With an answer, or by an error, after so many messages."""


class Observers:
    """All of them: what one is told, each is."""

    def __init__(self) -> None:
        self._all: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """From now on it is told as well."""
        self._all = (*self._all, observer)

    def remove(self, observer: Observer) -> None:
        """It is told nothing any more. Idempotent."""
        self._all = tuple(each for each in self._all if each is not observer)

    def converse(self, branch: int, conversation: Conversation) -> None:
        """See Observer, as for the others."""
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
