"""What an agent's answers are read as."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from .._errors import InvalidInput, OutputIncomplete, OutputInvalid
from .._shown import shown
from ..output import JsonSchema, Regex
from ..output._typed import Typed

Out = TypeVar("Out")


class Answers(Generic[Out]):
    """What `output` of an agent asks for: text, a type, or a grammar. Raises InvalidInput for anything else."""

    def __init__(self, output: Any) -> None:
        if isinstance(output, str):
            raise InvalidInput(f"output is {shown(output)}, but it must be a type")
        self._held = output if isinstance(output, JsonSchema | Regex) else None if output is str else Typed.of(output)

    def check(self, tools: bool) -> None:
        """Raises InvalidInput where the answer cannot be told from calls of tools."""
        if tools and isinstance(self._held, Regex):
            raise InvalidInput(
                f"output is {shown(self._held)}, but an agent with tools answers with text, a type or a kv.JsonSchema"
            )

    def read(self, text: str) -> Out:
        """The value of an answer. Raises OutputInvalid."""
        try:
            return cast(Out, text if self._held is None else self._held.read(text))
        except (OutputIncomplete, ValueError) as error:
            raise OutputInvalid(f"the answer {shown(text)} is refused: {error}", text) from error
