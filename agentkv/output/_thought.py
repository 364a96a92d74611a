"""Description of a message whose reasoning has a budget; a grammar may constrain the message or its answer."""

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
    """A message of which at most `budget` tokens are reasoning.

    Attributes:
        budget: reasoning tokens after which the thought is closed; 0 for no reasoning, None for any number.
        markers: texts around the reasoning.
        begun: position in the message at the end of the prompt.
        constraint: None for free text. A MessageGrammar covers the thought, any other grammar only the answer after it.
    """

    budget: int | None
    markers: Markers
    begun: Place
    constraint: GrammarSource[Any] | None

    @property
    def grammar(self) -> str:
        """The description as text, which `parts_of` reads."""
        constraint = None if self.constraint is None else self.constraint.grammar
        return f"{_KEY}{json.dumps({**self.to_json, 'held': constraint})}}}"

    @property
    def to_json(self) -> dict[str, Any]:
        """JSON of the description, without the constraint."""
        return {
            "budget": self.budget,
            "markers": asdict(self.markers),
            "begun": self.begun.stage.value,
            "tail": self.begun.tail.hex(),
            "in_message": self.in_message,
        }

    @property
    def in_message(self) -> bool:
        """Whether the constraint covers the thought: free text, or a MessageGrammar."""
        return self.constraint is None or isinstance(self.constraint, MessageGrammar)

    @property
    def is_over(self) -> bool:
        """Whether the message is past its thought."""
        return self.begun.stage is Stage.ANSWER

    @property
    def beginnings(self) -> Iterator[Thought]:
        """Copies of this description that begin at each stage of a message."""
        return (replace(self, begun=Place(stage)) for stage in Stage)

    def read(self, text: str) -> Any:
        """Parses the text after the thought."""
        return text if self.constraint is None else self.constraint.read(text)


@dataclass(frozen=True, slots=True)
class Parts:
    """A `Thought` read from text, with its grammar as text."""

    budget: int | None
    markers: Markers
    begun: Place
    constraint: str | None
    in_message: bool


def parts_of(grammar: str) -> Parts | None:
    """Parses the text of a `Thought`; None for any other grammar. Raises ValueError for a malformed one."""
    if not grammar.startswith(_KEY):
        return None
    try:
        description = json.loads(grammar)["thought"]
        begun = Place(Stage(description["begun"]), bytes.fromhex(description["tail"]))
        return Parts(
            description["budget"],
            Markers(**description["markers"]),
            begun,
            description["held"],
            description["in_message"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"the description of a thought is malformed: {error}") from error
