"""Templates of the generated cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from .draw import CITIES, EVENTS, PEOPLE, STREETS, TEXTS, TITLES, WORDS, Draw


class Drawn(NamedTuple):
    """Contents of a case: question, world data, and expected outcome."""

    question: str
    world: Mapping[str, Any]
    expected: Mapping[str, Any]


Template: TypeAlias = Callable[[Draw], Drawn]

# An answer that reports something missing contains one of these.
_NOT_THERE = [
    *("no", "not", "none", "nothing", "unable", "unavailable", "unknown", "missing", "without", "failed", "sorry"),
    *("cannot", "can't", "couldn't", "doesn't", "isn't", "wasn't", "hasn't", "null"),
]


def _solved(
    question: str, world: Mapping[str, Any], *calls: tuple[str, Mapping[str, Any]], says: Sequence[Any] = ()
) -> Drawn:
    """Contents of a case that these calls solve and whose answer must say each of `says`."""
    texts = [list(each) if isinstance(each, list | tuple) else [str(each)] for each in says]
    return Drawn(question, world, {"solution": list(calls), "says": texts})


def _calculate(expression: str) -> tuple[str, Mapping[str, Any]]:
    return "calculate", {"expression": expression}


# One tool


def _product(draw: Draw) -> Drawn:
    a, b = draw.number(12, 99), draw.number(12, 99)
    return _solved(f"What is {a} times {b}?", {"calculator": True}, _calculate(f"{a} * {b}"), says=[a * b])


def _pens(draw: Draw) -> Drawn:
    a, b, c = draw.number(12, 60), draw.number(12, 60), draw.number(3, 11)
    question = f"A box holds {a} pens. There are {b} boxes, and {c} pens are missing. How many pens are there?"
    return _solved(question, {"calculator": True}, _calculate(f"{a} * {b} - {c}"), says=[a * b - c])


def _degrees(draw: Draw) -> Drawn:
    world, [city] = {"weather": draw.weather()}, draw.some(CITIES, 1)
    degrees = world["weather"][city]["celsius"]
    question = f"How many degrees Celsius is it in {city}?"
    return _solved(question, world, ("get_weather", {"city": city}), says=[degrees])


def _sky(draw: Draw) -> Drawn:
    world, [city] = {"weather": draw.weather()}, draw.some(CITIES, 1)
    question = f"Is the sky clear in {city}, and if not, what is it like?"
    return _solved(question, world, ("get_weather", {"city": city}), says=[world["weather"][city]["sky"]])


def _phone(draw: Draw) -> Drawn:
    world, [name] = {"contacts": draw.contacts()}, draw.some(PEOPLE, 1)
    phone = world["contacts"][name]["phone"]
    return _solved(f"What is {name}'s phone number?", world, ("find_contact", {"name": name}), says=[phone])


# The right one of several tools


def _in_office(template: Template) -> Template:
    """Adds a whole office to a template's world, and thereby its tools."""

    def made(draw: Draw) -> Drawn:
        question, world, expected = template(draw)
        return Drawn(question, {**draw.office(), **world}, expected)

    return made


def _note(draw: Draw) -> Drawn:
    [title], [text] = draw.some(TITLES, 1), draw.some(TEXTS, 1)
    question = f"Keep a note titled '{title}' that says '{text}'."
    return _solved(question, {**draw.office(), "notes": {}}, ("add_note", {"title": title, "text": text}))


def _reminder(draw: Draw) -> Drawn:
    [title], date, time = draw.some(EVENTS, 1), draw.date(), draw.time()
    question = f"Put a reminder titled '{title}' into my calendar on {date} at {time}."
    event = {"title": title, "date": date, "time": time, "kind": "reminder"}
    return _solved(question, draw.office(), ("add_event", event))


def _deleted(draw: Draw) -> Drawn:
    world = draw.office()
    [title] = draw.some(list(world["notes"]), 1)
    return _solved(f"Throw away my note '{title}'.", world, ("delete_note", {"title": title}))


# Several calls that do not need each other


def _cities(draw: Draw) -> Drawn:
    world, cities = {"weather": draw.weather()}, draw.some(CITIES, 3)
    question = f"How many degrees Celsius is it in {cities[0]}, in {cities[1]} and in {cities[2]}?"
    calls = [("get_weather", {"city": city}) for city in cities]
    return _solved(question, world, *calls, says=[world["weather"][city]["celsius"] for city in cities])


def _two_products(draw: Draw) -> Drawn:
    a, b, c, d = (draw.number(12, 99) for _ in range(4))
    question = f"What is {a} times {b}, and what is {c} times {d}?"
    calls = [_calculate(f"{a} * {b}"), _calculate(f"{c} * {d}")]
    return _solved(question, {"calculator": True}, *calls, says=[a * b, c * d])


def _two_notes(draw: Draw) -> Drawn:
    titles, texts = draw.some(TITLES, 2), draw.some(TEXTS, 2)
    question = (
        f"Keep two notes: one titled '{titles[0]}' that says '{texts[0]}', and one titled '{titles[1]}' that says "
        f"'{texts[1]}'."
    )
    calls = [("add_note", {"title": title, "text": text}) for title, text in zip(titles, texts, strict=True)]
    return _solved(question, {"notes": {}}, *calls)


def _city_and_product(draw: Draw) -> Drawn:
    world, [city], a, b = draw.office(), draw.some(CITIES, 1), draw.number(12, 99), draw.number(12, 99)
    question = f"Two things: how many degrees Celsius is it in {city}, and what is {a} times {b}?"
    calls = [("get_weather", {"city": city}), _calculate(f"{a} * {b}")]
    return _solved(question, world, *calls, says=[world["weather"][city]["celsius"], a * b])


def _phones(draw: Draw) -> Drawn:
    world, names = {"contacts": draw.contacts()}, draw.some(PEOPLE, 2)
    calls = [("find_contact", {"name": name}) for name in names]
    question = f"What are the phone numbers of {names[0]} and of {names[1]}?"
    return _solved(question, world, *calls, says=[world["contacts"][name]["phone"] for name in names])


# Calls that need the results of others


def _author(draw: Draw) -> Drawn:
    world, [word] = {"files": draw.files()}, draw.some(WORDS, 1)
    path, text = next((path, text) for path, text in world["files"].items() if word in text)
    question = f"Who wrote the report of the {word}? Search my files for it, and read it."
    calls = ("search_files", {"word": word}), ("read_file", {"path": path})
    return _solved(question, world, *calls, says=[text.split("Written by ")[1].split(".")[0]])


def _warmer(draw: Draw) -> Drawn:
    weather, cities = draw.weather(), draw.some(CITIES, 2)
    one, two = (weather[city]["celsius"] for city in cities)
    question = (
        f"Look up how many degrees Celsius it is in {cities[0]} and in {cities[1]}, then multiply the two numbers with "
        "the calculator. What is the product?"
    )
    calls = [("get_weather", {"city": city}) for city in cities]
    world = {"weather": weather, "calculator": True}
    return _solved(question, world, *calls, _calculate(f"{one} * {two}"), says=[one * two])


def _budget(draw: Draw) -> Drawn:
    amount = draw.number(210, 890)
    world = {"notes": {"budget": f"{amount} euros a month"}, "calculator": True}
    question = "My note 'budget' says how much I have each month. How much is that in 12 months?"
    calls = ("read_note", {"title": "budget"}), _calculate(f"{amount} * 12")
    return _solved(question, world, *calls, says=[amount * 12])


def _address_note(draw: Draw) -> Drawn:
    world, [name] = {**draw.office(), "notes": {}}, draw.some(PEOPLE, 1)
    email = world["contacts"][name]["email"]
    question = f"Find out {name}'s email address, and keep a note titled 'address' whose text is that address alone."
    calls = ("find_contact", {"name": name}), ("add_note", {"title": "address", "text": email})
    return _solved(question, world, *calls)


def _invited(draw: Draw) -> Drawn:
    world, [name], [title] = draw.office(), draw.some(PEOPLE, 1), draw.some(EVENTS, 1)
    email, date, time = world["contacts"][name]["email"], draw.date(), draw.time()
    question = (
        f"Put a meeting titled '{title}' into my calendar on {date} at {time}, and invite {name} to it by the email "
        "address that I have of them."
    )
    invited = [{"name": name, "email": email}]
    event = {"title": title, "date": date, "time": time, "kind": "meeting", "attendees": invited}
    return _solved(question, world, ("find_contact", {"name": name}), ("add_event", event))


# Tools that fail, and say what to do


def _busy(template: Template, tool: str) -> Template:
    """Makes the first call of a tool fail in a template's world."""

    def made(draw: Draw) -> Drawn:
        question, world, expected = template(draw)
        fault = {"tool": tool, "says": "the service is busy; call again with the same arguments"}
        return Drawn(question, {**world, "faults": [fault]}, expected)

    return made


def _other_title(draw: Draw) -> Drawn:
    [title], [text] = draw.some(TITLES, 1), draw.some(TEXTS, 1)
    world = {"notes": {f"{title} {draw.number(2020, 2026)}": text}}
    call = "read_note", {"title": next(iter(world["notes"]))}
    return _solved(f"What does my note '{title}' say?", world, call, says=[text])


# Results that are of no use


def _no_contact(draw: Draw) -> Drawn:
    world, [name] = {"contacts": draw.contacts()}, draw.some(PEOPLE, 1)
    del world["contacts"][name]
    expected = {"called": True, "says": [_NOT_THERE]}
    return Drawn(f"What is {name}'s phone number?", world, expected)


def _no_reading(draw: Draw) -> Drawn:
    world, [city] = {"weather": draw.weather()}, draw.some(CITIES, 1)
    world["weather"][city] = {"celsius": None, "sky": None}
    question = f"How many degrees Celsius is it in {city}?"
    return _solved(question, world, ("get_weather", {"city": city}), says=[_NOT_THERE])


def _no_file(draw: Draw) -> Drawn:
    world, [word] = {"files": draw.files()}, draw.some(WORDS, 1)
    world["files"] = {path: text for path, text in world["files"].items() if word not in text}
    question = f"Who wrote the report of the {word}? Search my files for it."
    return _solved(question, world, ("search_files", {"word": word}), says=[_NOT_THERE])


def _file_gone(draw: Draw) -> Drawn:
    drawn = _author(draw)
    [word] = [word for word in WORDS if f"of the {word}?" in drawn.question]
    found = next(path for path, text in drawn.world["files"].items() if word in text)
    files = {f"old/{word}.txt": None, **drawn.world["files"]}
    says = drawn.expected["says"]
    calls = ("search_files", {"word": word}), ("read_file", {"path": found})
    return Drawn(drawn.question, {"files": files}, {"solution": calls, "says": says})


# Nothing to call

_ASKED_FOR_NOTHING = (
    "Hello! Who are you?",
    "Thank you, that was all.",
    "What is the capital of France?",
    "Write a poem of two lines about the sea.",
    "How do you say 'good morning' in Spanish?",
    "What is the opposite of 'early'?",
    "Name three colours of a rainbow.",
    "Is a whale a fish?",
    "Explain in one sentence what a calendar is.",
    "Who wrote Romeo and Juliet?",
    "Correct the spelling: 'I recieved your leter.'",
    "Which is longer, a mile or a kilometre?",
    "What is a weather forecast?",
    "Give me a word that rhymes with 'house'.",
)


def _no_tool(question: str) -> Template:
    return lambda draw: Drawn(question, draw.office(), {"called": False})


# Enums, and objects in objects


def _event_with(draw: Draw) -> Drawn:
    names, [title] = draw.some(PEOPLE, 2), draw.some(EVENTS, 1)
    people = [{"name": name, "email": f"{name.split()[0].lower()}@mail.example"} for name in names]
    kind, date, time = draw.some(("meeting", "call"), 1)[0], draw.date(), draw.time()
    invited = " and ".join(f"{one['name']} ({one['email']})" for one in people)
    question = f"Put a {kind} titled '{title}' into my calendar on {date} at {time}, with {invited}."
    event = {"title": title, "date": date, "time": time, "kind": kind, "attendees": people}
    return _solved(question, {"calendar": {}}, ("add_event", event))


def _order(draw: Draw) -> Drawn:
    products, sizes = draw.some(("apples", "bread", "coffee", "milk", "tea"), 2), draw.some(("small", "large"), 2)
    counts, [street], [city] = (draw.number(2, 4), draw.number(5, 9)), draw.some(STREETS, 1), draw.some(CITIES, 1)
    express = draw.number(0, 1) == 1
    items = [
        {"product": product, "size": size, "count": count}
        for product, size, count in zip(products, sizes, counts, strict=True)
    ]
    ordered = " and ".join(f"{item['count']} {item['size']} packs of {item['product']}" for item in items)
    question = f"Order {ordered}, to {street} in {city}, {'by' if express else 'not by'} express."
    order = {"items": items, "address": {"street": street, "city": city}, "express": express}
    return _solved(question, {"shop": []}, ("place_order", order))


TEMPLATES: Mapping[str, tuple[int, Sequence[Template]]] = {
    "one_tool": (14, (_product, _degrees, _phone, _pens, _sky)),
    "several_tools": (14, (_in_office(_product), _note, _in_office(_degrees), _reminder, _in_office(_phone), _deleted)),
    "parallel": (14, (_cities, _two_products, _two_notes, _city_and_product, _phones)),
    "chained": (14, (_author, _warmer, _budget, _address_note, _invited)),
    "tool_errors": (
        12,
        (_busy(_degrees, "get_weather"), _other_title, _busy(_product, "calculate"), _busy(_author, "read_file")),
    ),
    "bad_results": (8, (_no_contact, _no_reading, _no_file, _file_gone)),
    "no_tool": (14, tuple(map(_no_tool, _ASKED_FOR_NOTHING))),
    "nested": (10, (_event_with, _order)),
}
"""Number of cases and templates of each category."""
