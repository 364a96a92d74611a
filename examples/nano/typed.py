"""Answers of a type: one word of a choice, a bare number, yes or no, or a result as JSON."""

from __future__ import annotations

import json
import random

from . import extraction
from .arguments import Args
from .pools import Pool
from .records import INTEGER, NUMBER, STRING, Fact, Record, Schema
from .skills import SKILLS
from .tools import SKIES, Result
from .topics import TOPICS

_CHOOSE = (
    "{q}\nWhich is it: {c}?",
    "What is this about: {c}? {q}",
    "Choose one of {c}: {q}",
    "Classify as {c}.\n{q}",
    "{q}\nAnswer with one word: {c}.",
)
_BARE = (" Answer with the number alone.", " Only the number.", " Answer with a number.", " Give just the number.")
_YES = ("Is it {s} in {c}? Answer yes or no.", "Yes or no: is it {s} in {c}?", "Does {c} have {s} weather, yes or no?")


def choice(rng: random.Random, pool: Pool) -> tuple[str, str]:
    """Which of several topics a question is about."""
    tools = rng.sample(list(TOPICS), rng.randint(2, 4))
    words = [rng.choice(TOPICS[tool]) for tool in tools]
    index = rng.randrange(len(tools))
    skill = SKILLS[tools[index]]
    asked = skill.ask(rng, skill.sample(rng, pool))
    asked = asked[0].upper() + asked[1:] + rng.choice((".", "?", ""))
    listed = rng.choice((", ".join(words), f"{', '.join(words[:-1])} or {words[-1]}"))
    return rng.choice(_CHOOSE).format(q=asked, c=listed), words[index]


def reshape(rng: random.Random, tool: str, args: Args, result: Result, question: str) -> tuple[str, str] | None:
    """Ask for one call's result as a bare value or as JSON: the new question and its answer."""
    if list(result) == ["result"] and rng.random() < 0.5:
        return question + rng.choice(_BARE), json.dumps(result["result"])
    if tool == "weather" and rng.random() < 0.3:
        sky = result["sky"] if rng.random() < 0.5 else rng.choice(SKIES)
        asked = rng.choice(_YES).format(s=sky, c=args["city"])
        return asked, "yes" if sky == result["sky"] else "no"
    values = {**args, **result}
    facts = [Fact((key,), value, _schema_of(value)) for key, value in values.items() if value is not None]
    if "ok" in result or len(facts) != len(values):
        return None
    record = Record(tool.replace("_", " ").title().replace(" ", ""), "", tuple(facts))
    form = extraction.Form.sample(rng, record)
    ask = rng.choice(("Answer as JSON: ", "Reply with JSON of this schema: ", "As JSON, with this schema: "))
    return f"{question}\n{ask}{form.schema(record)}", form.answer(record)


def _schema_of(value: object) -> Schema:
    return STRING if isinstance(value, str) else INTEGER if isinstance(value, int) else NUMBER
