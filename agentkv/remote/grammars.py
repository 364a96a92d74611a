"""What generations over a server may say: grammars that the server holds, and no objects of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._errors import InvalidInput
from .._shown import shown
from ..output._driver import Grammars
from ..output._thought import Thought
from ..output.grammar import GrammarSource

if TYPE_CHECKING:
    from .._engine import StepEngine
    from ..output._driver import Description


class RemoteGrammars(Grammars):
    """They are compiled here as well, so that what is no grammar is refused before it is sent."""

    def of_generation(self, engine: StepEngine, branch: int, description: Description | None) -> Any:
        if description is not None and not isinstance(description, GrammarSource):
            raise InvalidInput(
                f"output is {shown(description)}, an object of this process, which a server cannot ask; give a type, "
                "kv.Regex, kv.JsonSchema or kv.Grammar"
            )
        return self._going_on(engine, branch, description) if isinstance(description, Thought) else description

    def _goes_on(self, engine: StepEngine, branch: int, description: Description) -> bool:
        return engine.goes_on(branch, description)
