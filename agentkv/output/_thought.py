"""A message whose reasoning has a budget, as a description: what is behind it may be held to a grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentkv_runtime.formats.thought import Markers, Place, Stage

from .grammar import GrammarSource, MessageGrammar

_KEY = '{"thought": '


@dataclass(frozen=True, slots=True)
class Thought(GrammarSource[Any]):
    """A message of which at most `budget` tokens are reasoning; None for any number.

    Attributes:
        budget: at which the thought is closed, and the answer follows; 0 for none.
        markers: what is around the reasoning.
        begun: where the message is that the prompt has begun.
        held: what it is held to, None for free text. A MessageGrammar knows of the thought, any other grammar is of
            what comes behind it.
    """

    budget: int | None
    markers: Markers
    begun: Place
    held: GrammarSource[Any] | None

    @property
    def grammar(self) -> str:
        """All of it as text, which `parts_of` reads."""
        held = None if self.held is None else self.held.grammar
        return f"{_KEY}{json.dumps({**self.told, 'held': held})}}}"

    @property
    def told(self) -> dict[str, Any]:
        """What JSON can say of it, but for what it is held to."""
        return {
            "budget": self.budget,
            "markers": asdict(self.markers),
            "begun": self.begun.stage.value,
            "tail": self.begun.tail.hex(),
            "in_message": self.in_message,
        }

    @property
    def in_message(self) -> bool:
        """Does what it is held to know of the thought?"""
        return self.held is None or isinstance(self.held, MessageGrammar)

    @property
    def is_over(self) -> bool:
        """Is the message past its thought?"""
        return self.begun.stage is Stage.ANSWER

    @property
    def beginnings(self) -> Iterator[Thought]:
        """The same message, begun elsewhere."""
        return (replace(self, begun=Place(stage)) for stage in Stage)

    def read(self, text: str) -> Any:
        """The value of what is behind the thought."""
        return text if self.held is None else self.held.read(text)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a text says of a thought: as `Thought`, with the grammar's text."""

    budget: int | None
    markers: Markers
    begun: Place
    held: str | None
    in_message: bool


def parts_of(grammar: str) -> Parts | None:
    """What such a text says; None for any other grammar. Raises ValueError for one that is malformed."""
    if not grammar.startswith(_KEY):
        return None
    try:
        told = json.loads(grammar)["thought"]
        begun = Place(Stage(told["begun"]), bytes.fromhex(told["tail"]))
        return Parts(told["budget"], Markers(**told["markers"]), begun, told["held"], told["in_message"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the description of a thought is malformed: {error}") from error
