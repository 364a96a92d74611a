"""Questions for each tool, in many wordings, and the one sentence that reports each result."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from . import arguments, pools
from .arguments import Args
from .pools import Pool
from .tools import FIELDS, LANGUAGES, Result

_ARITHMETIC = {
    "+": (
        "what is {a} plus {b}",
        "add {a} and {b}",
        "compute {a} + {b}",
        "what is the sum of {a} and {b}",
        "{a} + {b}",
    ),
    "-": ("what is {a} minus {b}", "subtract {b} from {a}", "compute {a} - {b}", "take {b} away from {a}", "{a} - {b}"),
    "*": ("what is {a} times {b}", "multiply {a} by {b}", "compute {a} * {b}", "work out {a} times {b}", "{a} * {b}"),
    "/": ("what is {a} divided by {b}", "divide {a} by {b}", "compute {a} / {b}", "split {a} into {b} parts"),
}
_BRACKETED = ("compute ({a} + {b}) * {c}", "add {a} and {b} and multiply by {c}", "what is {a} plus {b}, times {c}")


@dataclass(frozen=True)
class Skill:
    """How one tool is asked for, and how its result is told."""

    sample: Callable[[random.Random, Pool], Args]
    asks: tuple[str, ...]
    answer: Callable[[Args, Result], str]
    key: str | None = None  # the argument that lists ("in A, B and C") and follow-ups ("and in B?") vary
    lists: tuple[str, ...] = ()

    def ask(self, rng: random.Random, args: Args) -> str:
        """One wording of the question, without capital or full stop."""
        return rng.choice(self.asks).format(**args)


class _Calculator(Skill):
    def ask(self, rng: random.Random, args: Args) -> str:
        parts = args["expression"].replace("(", "").replace(")", "").split(" ")
        if len(parts) == 5:
            return rng.choice(_BRACKETED).format(a=parts[0], b=parts[2], c=parts[4])
        return rng.choice(_ARITHMETIC[parts[1]]).format(a=parts[0], b=parts[2])


def _tell_event(args: Args, result: Result) -> str:
    if result["event"] is None:
        return f"Nothing is planned on {args['day']}."
    return f"On {args['day']} you have {result['event']} at {result['time']}."


def _tell_contact(args: Args, result: Result) -> str:
    if args["field"] == "city":
        return f"{args['name']} lives in {result['city']}."
    return f"{args['name']}, {args['field']}: {result[args['field']]}."


class _Contact(Skill):
    def ask(self, rng: random.Random, args: Args) -> str:
        if args["field"] == "city":
            return rng.choice(("where does {name} live", "which city is {name} in", "find the city of {name}")).format(
                **args
            )
        return super().ask(rng, args)


SKILLS: dict[str, Skill] = {
    "calculator": _Calculator(arguments.expression, (), lambda a, r: f"{a['expression']} = {r['result']}."),
    "convert": Skill(
        arguments.conversion,
        (
            "convert {value} {unit} to {to}",
            "how many {to} are {value} {unit}",
            "what is {value} {unit} in {to}",
            "turn {value} {unit} into {to}",
            "{value} {unit} in {to}",
        ),
        lambda a, r: f"{a['value']} {a['unit']} is {r['result']} {a['to']}.",
    ),
    "weather": Skill(
        arguments.city,
        (
            "what is the weather in {city}",
            "how is the weather in {city}",
            "weather in {city}",
            "is it cold in {city}",
            "do I need a coat in {city}",
            "what is it like outside in {city}",
            "check the weather for {city}",
        ),
        lambda a, r: f"It is {r['temp']} degrees and {r['sky']} in {a['city']}.",
        "city",
        ("what is the weather in {list}", "compare the weather in {list}", "check the weather for {list}"),
    ),
    "calendar": Skill(
        lambda rng, pool: {"day": arguments.date(rng, pool)},
        (
            "what is on my calendar on {day}",
            "am I busy on {day}",
            "do I have anything on {day}",
            "my plans for {day}",
            "what do I have on {day}",
            "show me {day}",
        ),
        _tell_event,
        "day",
        ("what do I have on {list}", "am I free on {list}"),
    ),
    "add_event": Skill(
        lambda rng, pool: {
            "title": arguments.title(rng, pool),
            "day": arguments.date(rng, pool),
            "time": pools.clock(rng, pool),
        },
        (
            "add {title} on {day} at {time}",
            "schedule {title} at {time} on {day}",
            "put {title} on {day} at {time}",
            "book {title} for {day} at {time}",
        ),
        lambda a, r: f"Booked {a['title']} on {a['day']} at {a['time']}.",
    ),
    "stock": Skill(
        lambda rng, pool: {"product": pools.name(rng, pool)},
        (
            "how many {product} are in stock",
            "do we have any {product} left",
            "is {product} available",
            "stock of {product}",
            "check the stock of {product}",
            "what does {product} cost",
        ),
        lambda a, r: f"{a['product']}: {r['count']} in stock at {r['price']} EUR.",
        "product",
        ("check the stock of {list}", "how many {list} do we have", "are {list} available"),
    ),
    "search_notes": Skill(
        lambda rng, pool: {"query": pools.name(rng, pool)},
        (
            "search my notes for {query}",
            "what do my notes say about {query}",
            "find my note on {query}",
            "look up {query} in the notes",
            "did I write anything about {query}",
        ),
        lambda a, r: f"Your notes say: {r['note']}.",
        "query",
        ("search my notes for {list}", "what do my notes say about {list}"),
    ),
    "contact": _Contact(
        lambda rng, pool: {"name": pools.name(rng, pool), "field": rng.choice(FIELDS)},
        (
            "what is the {field} of {name}",
            "find the {field} of {name}",
            "I need the {field} of {name}",
            "give me the {field} for {name}",
        ),
        _tell_contact,
    ),
    "exchange": Skill(
        arguments.exchange,
        (
            "convert {amount} {currency} to {to}",
            "how much is {amount} {currency} in {to}",
            "exchange {amount} {currency} to {to}",
            "change {amount} {currency} into {to}",
            "{amount} {currency} in {to}",
        ),
        lambda a, r: f"{a['amount']} {a['currency']} is {r['result']} {a['to']}.",
    ),
    "train": Skill(
        arguments.trip,
        (
            "when is the next train from {origin} to {to}",
            "find a train from {origin} to {to}",
            "train from {origin} to {to}",
            "I want to go by train from {origin} to {to}",
            "get me a train to {to} from {origin}",
        ),
        lambda a, r: f"Train {r['train']} to {a['to']} leaves at {r['departs']}.",
    ),
    "flight": Skill(
        arguments.trip,
        (
            "find a flight from {origin} to {to}",
            "how much is a flight from {origin} to {to}",
            "fly from {origin} to {to}",
            "I want to fly to {to} from {origin}",
            "cheapest flight from {origin} to {to}",
        ),
        lambda a, r: f"Flight {r['flight']} to {a['to']} costs {r['price']} EUR.",
    ),
    "add_todo": Skill(
        lambda rng, pool: {"item": arguments.errand(rng, pool)},
        (
            "add {item} to my list",
            "put {item} on my todo list",
            "note that I have to {item}",
            "todo: {item}",
            "I still have to {item}, add it to the list",
        ),
        lambda a, r: f"Added {a['item']}, your list has {r['items']} items.",
    ),
    "set_timer": Skill(
        lambda rng, pool: {"minutes": pools.integer(rng, pool)},
        (
            "set a timer for {minutes} minutes",
            "start a {minutes} minute timer",
            "timer {minutes} minutes",
            "wake me in {minutes} minutes",
            "count down {minutes} minutes",
        ),
        lambda a, r: f"Timer {r['timer']} is set for {a['minutes']} minutes.",
    ),
    "remind": Skill(
        lambda rng, pool: {"text": arguments.errand(rng, pool), "time": pools.clock(rng, pool)},
        (
            "remind me to {text} at {time}",
            "at {time} remind me to {text}",
            "set a reminder for {time} to {text}",
            "do not let me forget to {text} at {time}",
        ),
        lambda a, r: f"Reminder set for {a['time']}: {a['text']}.",
    ),
    "translate": Skill(
        lambda rng, pool: {"word": pools.word(rng, pool), "language": rng.choice(LANGUAGES)},
        (
            'translate "{word}" to {language}',
            'what is "{word}" in {language}',
            'how do you say "{word}" in {language}',
            'the {language} word for "{word}"',
        ),
        lambda a, r: f'"{a["word"]}" is "{r["word"]}" in {a["language"]}.',
    ),
    "define": Skill(
        lambda rng, pool: {"word": pools.word(rng, pool)},
        (
            'what does "{word}" mean',
            'define "{word}"',
            'meaning of "{word}"',
            'look up the word "{word}"',
            'what is a "{word}"',
        ),
        lambda a, r: f'"{a["word"]}" means {r["meaning"]}.',
        "word",
        ("define {list}", "what do {list} mean"),
    ),
    "track": Skill(
        lambda rng, pool: {"package": pools.code(rng, pool)},
        (
            "where is package {package}",
            "track {package}",
            "when does {package} arrive",
            "find my package {package}",
            "status of order {package}",
        ),
        lambda a, r: f"Package {a['package']} is in {r['city']} and arrives on {r['arrives']}.",
        "package",
        ("where are packages {list}", "track {list}"),
    ),
    "clock": Skill(
        arguments.city,
        ("what time is it in {city}", "tell me the time in {city}", "local time in {city}", "how late is it in {city}"),
        lambda a, r: f"It is {r['time']} in {a['city']}.",
        "city",
        ("what time is it in {list}", "tell me the time in {list}"),
    ),
    "send": Skill(
        lambda rng, pool: {"to": pools.name(rng, pool), "text": arguments.message(rng, pool)},
        (
            "tell {to} that {text}",
            "send {to} a message that {text}",
            "let {to} know that {text}",
            "write {to} that {text}",
        ),
        lambda a, r: f"Sent to {a['to']}: {a['text']}.",
    ),
}


def tell(tool: str, args: Args, result: Result, shown: str) -> str:
    """The sentence that reports one call; `shown` is the name under which the model knows the tool."""
    if "error" in result:
        return f"Sorry, the {shown} tool failed: {result['error']}."
    return SKILLS[tool].answer(args, result)
