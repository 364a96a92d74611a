"""The set of tools that one conversation offers, under the names that the model is shown."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from . import descriptions
from .experts import Expert
from .pools import Pool, chance
from .tools import TOOLS, Call, Result, execute


@dataclass(frozen=True)
class Desk:
    """Some of the tools, in the order in which they are shown, a few of them renamed or in somebody's own words."""

    tools: tuple[str, ...]
    renamed: dict[str, str] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)
    expert: Expert | None = None

    @classmethod
    def sample(
        cls,
        rng: random.Random,
        pool: Pool,
        needed: tuple[str, ...] = (),
        least: int = 1,
        rename: float = 0.0,
        describe: float = 0.0,
        expert: float = 0.0,
    ) -> Desk:
        """`least` to six tools, `needed` among them; then how probable other names, words and an expert are."""
        spare = [name for name in TOOLS if name not in needed]
        chosen = [*needed, *rng.sample(spare, max(0, rng.randint(least, 6) - len(needed)))]
        rng.shuffle(chosen)
        renamed = {
            name: descriptions.rename(rng, pool, name, free=describe > 0) for name in chosen if chance(rng, rename)
        }
        described = {name: descriptions.describe(rng, pool, name) for name in chosen if chance(rng, describe)}
        absent = [name for name in spare if name not in chosen]
        known = Expert.sample(rng, pool, absent) if chance(rng, expert) else None
        return cls(tuple(chosen), renamed, described, known)

    def shown(self, tool: str) -> str:
        """The name under which the model knows a tool."""
        return self.renamed.get(tool, tool)

    def definitions(self) -> list[dict[str, Any]]:
        """The definitions for the chat template."""
        definitions = []
        for name in self.tools:
            definition = TOOLS[name].definition()
            function = definition["function"]
            function["name"] = self.shown(name)
            if name in self.described:
                function["description"] = self.described[name]
                _whole_numbers(function["parameters"]["properties"])
            definitions.append(definition)
        return [*definitions, _delegate(self.expert)] if self.expert else definitions

    @property
    def names(self) -> list[str]:
        """What the model may call."""
        return [self.shown(name) for name in self.tools] + ([self.expert.name] if self.expert else [])

    @property
    def absent(self) -> list[str]:
        """The tools that nobody here stands in for."""
        return [name for name in TOOLS if name not in self.tools and not (self.expert and name == self.expert.tool)]

    def execute(self, call: Call) -> Result:
        """Run a call that the model wrote; only the tools on this desk can be reached."""
        for name in self.tools:
            if self.shown(name) == call.name:
                return execute(Call(name, call.arguments))
        return {"error": "unknown tool"}


def _whole_numbers(properties: dict[str, Any]) -> None:
    """Minutes are integers to whoever writes a function of them."""
    if "minutes" in properties:
        properties["minutes"] = {"type": "integer"}


def _delegate(expert: Expert) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
    return {"type": "function", "function": {"name": expert.name, "description": expert.about, "parameters": schema}}
