"""Random contents of generated cases, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

PEOPLE = ("Anna Berg", "Ben Okafor", "Clara Diaz", "David Chen", "Elif Kaya", "Femi Ade", "Greta Lund", "Hugo Marin")
CITIES = ("Athens", "Bergen", "Cairo", "Dublin", "Geneva", "Hanoi", "Lima", "Nairobi", "Oslo", "Quito", "Riga", "Turin")
SKIES = ("clear", "cloudy", "rainy", "snowy", "foggy", "windy")
TITLES = ("garden", "holiday", "taxes", "recipes", "birthday", "books", "bicycle", "insurance")
TEXTS = ("buy new tyres", "call the bank", "water the roses", "pay the rent", "ask for a refund", "bring the keys")
WORDS = ("glacier", "lantern", "harbour", "pepper", "violin", "saffron", "compass", "orchard")
EVENTS = ("Budget review", "Team lunch", "Dentist", "Project start", "Board meeting", "Piano lesson")
STREETS = ("12 Hill Road", "7 Mill Lane", "31 Park Street", "5 Station Square")


class Draw:
    """Draws contents of cases. Equal seeds draw equal contents."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def some(self, values: Sequence[str], n: int) -> list[str]:
        """Draws `n` different values."""
        return self.random.sample(values, n)

    def number(self, low: int, high: int) -> int:
        """Draws an integer from `low` to `high`, inclusive."""
        return self.random.randint(low, high)

    def date(self) -> str:
        """Draws a date, as 2026-03-31."""
        return f"2026-{self.number(1, 12):02}-{self.number(1, 28):02}"

    def time(self) -> str:
        """Draws a time from 08:00 to 18:45, in quarters of an hour."""
        return f"{self.number(8, 18):02}:{self.random.choice(('00', '15', '30', '45'))}"

    def weather(self) -> dict[str, Any]:
        """Draws the weather of all cities."""
        return {city: {"celsius": self.number(-9, 34), "sky": self.random.choice(SKIES)} for city in CITIES}

    def contacts(self) -> dict[str, Any]:
        """Draws contacts of all people."""
        return {
            name: {"email": f"{name.split()[0].lower()}@{word}.example", "phone": f"555-{self.number(1000, 9999)}"}
            for name, word in zip(PEOPLE, self.some(WORDS, len(PEOPLE)), strict=True)
        }

    def files(self) -> dict[str, Any]:
        """Draws a file about each word, with its author."""
        authors = self.some(PEOPLE, len(PEOPLE))
        return {
            f"reports/{2000 + at}.txt": f"Report of the {word}. Written by {author}. {self.number(20, 90)} pages."
            for at, (word, author) in enumerate(zip(self.some(WORDS, len(WORDS)), authors, strict=True), 11)
        }

    def office(self) -> dict[str, Any]:
        """Draws a world with all parts except the shop."""
        notes = dict(zip(self.some(TITLES, 3), self.some(TEXTS, 3), strict=True))
        return {
            "calculator": True,
            "weather": self.weather(),
            "notes": notes,
            "files": self.files(),
            "contacts": self.contacts(),
            "calendar": {},
        }
