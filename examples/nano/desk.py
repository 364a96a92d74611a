"""The set of tools that one conversation offers, under the names that the model is shown."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from . import pools
from .pools import Pool
from .tools import TOOLS, Call, Result, execute


@dataclass(frozen=True)
class Desk:
    """Some of the tools, in the order in which they are shown, a few of them renamed."""

    tools: tuple[str, ...]
    renamed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def sample(cls, rng: random.Random, pool: Pool, needed: tuple[str, ...] = (), rename: float = 0.0) -> Desk:
        """Three to six tools, `needed` among them; each is renamed with probability `rename`."""
        spare = [name for name in TOOLS if name not in needed]
        chosen = [*needed, *rng.sample(spare, max(0, rng.randint(3, 6) - len(needed)))]
        rng.shuffle(chosen)
        # A name that no other conversation uses can only come from reading the definitions.
        renamed = {name: f"{name}_{pools.word(rng, pool)}" for name in chosen if rng.random() < rename}
        return cls(tuple(chosen), renamed)

    def shown(self, tool: str) -> str:
        """The name under which the model knows a tool."""
        return self.renamed.get(tool, tool)

    def definitions(self) -> list[dict[str, Any]]:
        """The definitions for the chat template."""
        definitions = []
        for name in self.tools:
            definition = TOOLS[name].definition()
            definition["function"]["name"] = self.shown(name)
            definitions.append(definition)
        return definitions

    def execute(self, call: Call) -> Result:
        """Run a call that the model wrote; only the tools on this desk can be reached."""
        for name in self.tools:
            if self.shown(name) == call.name:
                return execute(Call(name, call.arguments))
        return {"error": "unknown tool"}
