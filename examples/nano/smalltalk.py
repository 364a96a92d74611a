"""Questions that need no tool: greetings, facts from the system prompt, and what is out of reach."""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import pools
from .pools import Pool
from .tools import DAYS, SYSTEM

NO_TOOL = "Sorry, I have no tool for that."
_SYSTEMS = (SYSTEM, SYSTEM, SYSTEM, "You are a desk agent.", "You are a helpful assistant.", "You are Nano. Be brief.")
_ATTRIBUTES = ("badge", "desk", "locker", "plate", "shift", "room")
_TALK = {
    "Hello! How can I help?": ("Hello", "Hi", "Hi there", "Hey", "Good morning", "Good evening", "Hello Nano"),
    "You are welcome.": ("Thanks", "Thank you", "Thanks a lot", "Great, thanks", "Perfect, thank you", "Cheers"),
    "Goodbye.": ("Bye", "Goodbye", "See you", "That is all", "See you tomorrow", "Good night"),
    "I am Nano, your desk agent.": ("Who are you", "What is your name", "What are you", "Introduce yourself"),
    "I am fine, thank you.": ("How are you", "How is it going", "Are you well", "How do you do"),
}
_BEYOND = (
    "play some music by {n}",
    "order a pizza for {n}",
    "paint my house",
    "write a poem about {n}",
    "book a table at {n}",
    "who won the match against {n}",
    "tell me a joke",
    "turn on the lights in room {d}",
    "open the window",
    "draw a picture of {n}",
    "who is the president of {n}",
    "buy {d} shares of {n}",
    "print {d} copies",
    "make coffee",
    "read the news",
    "fix my computer",
    "how tall is {n}",
    "what is the capital of {n}",
    "delete file {d}",
    "sing a song",
    "cook dinner for {n}",
    "which film should I watch",
    "drive me to {n}",
    "write code that sorts {d} numbers",
)


@dataclass(frozen=True)
class Facts:
    """What the system prompt says besides who the agent is."""

    system: str
    user: str | None
    today: str | None
    notes: tuple[tuple[str, str, str], ...]

    @classmethod
    def sample(cls, rng: random.Random, pool: Pool, notes: int | None = None) -> Facts:
        """A system prompt; `notes` fixes how many facts it lists."""
        user = pools.name(rng, pool) if rng.random() < 0.35 else None
        today = rng.choice(DAYS) if rng.random() < 0.35 else None
        count = notes if notes is not None else rng.choice((0, 0, 0, rng.randint(1, 5)))
        facts: dict[tuple[str, str], str] = {}
        for _ in range(count):
            value = str(pools.integer(rng, pool)) if rng.random() < 0.5 else pools.code(rng, pool)
            facts[rng.choice(_ATTRIBUTES), pools.name(rng, pool)] = value
        system = rng.choice(_SYSTEMS)
        system += f" The user is {user}." if user else ""
        system += f" Today is {today}." if today else ""
        listed = tuple((what, who, value) for (what, who), value in facts.items())
        system += "".join(f"\n{who}, {what}: {value}" for what, who, value in listed)
        return cls(system, user, today, listed)

    def question(self, rng: random.Random) -> tuple[str, str]:
        """A question about one of the notes, and its answer."""
        what, who, value = rng.choice(self.notes)
        ask = rng.choice(
            ("What is the {a} of {n}?", "Which {a} does {n} have?", "Tell me the {a} of {n}.", "{n}, {a}?")
        )
        return ask.format(a=what, n=who), f"{who}, {what}: {value}."


def small_talk(rng: random.Random, pool: Pool, facts: Facts, tools: list[str], said: list[str]) -> tuple[str, str]:
    """A question that no tool is needed for, and its answer."""
    kind = rng.random()
    if facts.notes and kind < 0.5:
        return facts.question(rng)
    if kind < 0.12:
        ask = rng.choice(_BEYOND).format(n=pools.name(rng, pool), d=pools.integer(rng, pool))
        return ask[0].upper() + ask[1:] + rng.choice((".", "?", "")), NO_TOOL
    if kind < 0.3:
        ask = rng.choice(("What can you do?", "Which tools do you have?", "List your tools.", "How can you help me?"))
        return ask, f"I can use: {', '.join(tools)}."
    if kind < 0.46:
        ask = rng.choice(("What is my name?", "Who am I?", "Do you know my name?"))
        return ask, f"You are {facts.user}." if facts.user else "I do not know your name."
    if kind < 0.54:
        ask = rng.choice(("What day is it?", "Which day is today?", "What is today?"))
        return ask, f"Today is {facts.today}." if facts.today else "I do not know what day it is."
    if said and kind < 0.75:
        return rng.choice(("Say that again.", "Repeat that, please.", "Again, please.", "What did you say?")), said[-1]
    answer, asks = rng.choice(list(_TALK.items()))
    return rng.choice(asks) + rng.choice((".", "!", "")), answer
