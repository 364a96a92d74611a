"""Outcome of a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .cases import Case

MAX_ROUNDS = 8  # messages of a whole turn


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call of the model.

    Attributes:
        name: name of the tool.
        arguments: arguments as the model wrote them.
        result: result of the tool; None if there is none.
        error: error that the model read instead of a result; None if there is none.
        rescued: name of the syntax that it was written in, if not that of the model's format.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Any = None
    error: str | None = None
    rescued: str | None = None

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a case.

    Attributes:
        calls: calls in the order in which the model wrote them.
        text: last text of the model to the user.
        raw: all text after the question, as the model wrote and read it.
        state: final state of the case's world; None without a world.
        tokens: number of generated tokens.
        seconds: seconds from the question to the end, waiting for other cases included.
        stopped: limit that ended it; None if the model ended by itself.
        error: reason why there is no reply to judge; None if there is one.
    """

    calls: tuple[Called, ...] = ()
    text: str = ""
    raw: str = ""
    state: Mapping[str, Any] | None = None
    tokens: int = 0
    seconds: float = field(default=0.0, compare=False)
    stopped: str | None = None
    error: str | None = None


class Runner(Protocol):
    """Runs cases with a model."""

    async def answer(self, case: Case) -> Outcome:
        """Runs a case. Errors that concern only this case are part of the outcome; others are raised."""
        ...
