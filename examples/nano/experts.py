"""Sub-agents behind a tool: whoever asks one hands the question on and passes the answer on."""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import pools
from .pools import Pool
from .skills import SKILLS
from .tools import TOOLS
from .topics import TOPICS

_NAMES = ("ask_{t}", "{t}", "{t}_expert", "{t}_agent", "{t}_desk", "expert_{w}")
_ABOUT = (
    "Knows about {t}.",
    "Asks an expert on {t}.",
    "Answers questions about {t}.",
    "The {t} desk.",
    "A colleague who knows all about {t}.",
)


@dataclass(frozen=True)
class Expert:
    """Somebody who answers what one tool is for; `name` and `about` are what the model reads of them."""

    name: str
    tool: str
    about: str

    @classmethod
    def sample(cls, rng: random.Random, pool: Pool, tools: list[str]) -> Expert:
        """An expert for one of `tools`."""
        tool = rng.choice([name for name in tools if name in TOPICS])
        topic = rng.choice(TOPICS[tool])
        name = rng.choice(_NAMES).format(t=topic, w=pools.word(rng, pool))
        return cls(name, tool, rng.choice(_ABOUT).format(t=topic))

    def question(self, rng: random.Random, pool: Pool) -> tuple[str, str]:
        """What it is asked, and what it answers."""
        skill = SKILLS[self.tool]
        args = skill.sample(rng, pool)
        return skill.ask(rng, args), skill.answer(args, TOOLS[self.tool].run(**args))
