"""What tools are said to do: their own words, and the many ways in which their users would put it."""

from __future__ import annotations

import random

from . import pools
from .pools import Pool

FREE: dict[str, tuple[str, ...]] = {
    "calculator": (
        "Evaluates an expression.",
        "Arithmetic with + - * / and brackets.",
        "Work out a sum",
        "Does maths.",
    ),
    "convert": ("Converts a value between units.", "Units of length, mass and volume.", "From one unit to another"),
    "weather": (
        "The weather in a city.",
        "Temperature and sky of a city.",
        "Look up the current weather.",
        "Get the forecast for a place",
        "How warm it is, and whether it rains.",
        "Returns today's weather at a location.",
    ),
    "calendar": (
        "What is planned on a day.",
        "Looks up the calendar.",
        "The events of a given day",
        "Plans for a day.",
    ),
    "add_event": ("Books an event.", "Put an appointment in the calendar.", "Create a calendar entry", "Schedule it."),
    "stock": (
        "How many are on the shelf.",
        "Looks a product up in the warehouse.",
        "Count and price of a product.",
        "Inventory of the shop",
        "Is a product available?",
    ),
    "search_notes": ("Finds a note.", "Full text search over the user's notes.", "Search in what was written down"),
    "contact": ("Looks up a person.", "The address book.", "How to reach somebody.", "One field of a contact"),
    "exchange": ("Converts money.", "Exchange rates.", "Change an amount into another currency.", "Currency converter"),
    "train": ("When the next train leaves.", "Train timetable.", "Looks up a connection by rail", "Find a train."),
    "flight": ("Looks for flights.", "Flight prices.", "The best fare between two airports", "Find a flight."),
    "add_todo": (
        "Adds an item to the list.",
        "Remember something to do.",
        "New entry on the todo list",
        "A task to do.",
    ),
    "set_timer": ("Starts a countdown.", "Set a kitchen timer.", "Rings after some minutes", "A timer in minutes."),
    "remind": ("Creates a reminder.", "Remind the user of something.", "Alert at a time of day", "Sets an alarm."),
    "translate": ("Translates a word.", "A dictionary between languages.", "Say it in another language"),
    "define": ("The meaning of a word.", "Looks a word up in the dictionary.", "Explain a word", "Defines a word."),
    "track": ("Where a parcel is.", "Tracks an order.", "Status of a delivery", "Looks up a shipment by its number."),
    "clock": ("What time it is somewhere.", "Local time.", "The current time in a place", "Tell the time of a city."),
    "send": ("Sends a text message.", "Write to somebody.", "Message a person", "Deliver a short message."),
}


def describe(rng: random.Random, pool: Pool, tool: str) -> str:
    """Somebody's words for a tool; now and then none, or words that nobody knows, so that its name has to do."""
    kind = rng.random()
    if kind < 0.1:
        return ""
    if kind < 0.25:
        return " ".join(pools.word(rng, pool) for _ in range(rng.randint(2, 6)))
    return rng.choice(FREE[tool])


def rename(rng: random.Random, pool: Pool, tool: str, free: bool) -> str:
    """A name that no other conversation uses, or with `free` one that users give."""
    if not free or rng.random() < 0.75:
        return f"{tool}_{pools.word(rng, pool)}"
    return rng.choice(("get_{}", "find_{}", "my_{}", "do_{}", "{}_tool", "ask_{}")).format(tool)
