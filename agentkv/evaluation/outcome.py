"""What a model did with a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .cases import Case

MAX_ROUNDS = 8  # messages of a whole turn


@dataclass(frozen=True, slots=True)
class Called:
    """A call that a model made.

    Attributes:
        name: of the tool.
        arguments: as the model wrote them.
        result: what the tool returned; None where it did not.
        error: what the model read instead of a result.
        rescued: was it written in another form than the model's own?
    """

    name: str
    arguments: Mapping[str, Any]
    result: Any = None
    error: str | None = None
    rescued: bool = False

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of asking a case.

    Attributes:
        calls: in the order in which the model wrote them.
        text: what the model said to the user last.
        raw: all that was said after the question, as the model wrote and read it.
        state: of the case's world in the end; None where it has none.
        tokens: that were generated.
        seconds: from the question to the end, waiting for others included.
        stopped: the limit that it ended at; None where the model ended by itself.
        error: why there is no reply to judge; None where there is one.
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
    """What puts a case to a model."""

    async def answer(self, case: Case) -> Outcome:
        """What came of it. Errors of the case alone are told in the outcome; others are raised."""
        ...
