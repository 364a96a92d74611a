"""Facts with the sentences that tell them: what typed extraction reads, and the values that it must find."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import arguments, pools
from .pools import Pool
from .tools import DAYS, SKIES, UNITS

Schema = dict[str, Any]
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}


@dataclass(frozen=True)
class Fact:
    """One value, the names that a field for it may have, and its type as a schema."""

    names: tuple[str, ...]
    value: Any
    schema: Schema


@dataclass(frozen=True)
class Record:
    """What is said, what is to be found in it, and fields that fit it but of which nothing is said."""

    title: str
    text: str
    facts: tuple[Fact, ...]
    unsaid: tuple[Fact, ...] = ()

    @property
    def fields(self) -> list[tuple[str, ...]]:
        """The names of all fields, in order: records with the same ones take the same forms."""
        return [fact.names for fact in (*self.facts, *self.unsaid)]


@dataclass(frozen=True)
class _Trait:
    names: tuple[str, ...]
    schema: Schema
    draw: Callable[[random.Random, Pool], Any]
    says: tuple[str, ...]


_NAME = ("name", "person", "who", "full_name", "customer")
_CITY = ("city", "town", "place", "location")
_TRAITS = (
    _Trait(_CITY, STRING, pools.name, ("{n} lives in {v}", "{n} is from {v}", "the home of {n} is {v}")),
    _Trait(("age", "years"), INTEGER, lambda r, p: r.randint(3, 99), ("{n} is {v} years old", "{n} is {v}")),
    _Trait(("room", "office"), INTEGER, pools.integer, ("{n} sits in room {v}", "the room of {n} is {v}")),
    _Trait(("badge", "id", "code"), STRING, pools.code, ("{n} has badge {v}", "the badge of {n} is {v}")),
    _Trait(
        ("phone", "number", "telephone"),
        STRING,
        lambda r, p: f"{pools.integer(r, p)}-{pools.integer(r, p)}",
        ("call {n} at {v}", "the phone of {n} is {v}", "{n}, phone: {v}"),
    ),
    _Trait(
        ("email", "mail", "address"),
        STRING,
        lambda r, p: f"{pools.word(r, p)}@{pools.word(r, p)}.com",
        ("write to {n} at {v}", "the email of {n} is {v}"),
    ),
    _Trait(("package", "order", "order_id"), STRING, pools.code, ("{n} ordered {v}", "order {v} is for {n}")),
    _Trait(("day", "weekday"), STRING, lambda r, p: r.choice(DAYS), ("{n} comes on {v}", "{n} is free on {v}")),
)


def listing(items: list[str]) -> str:
    """`A`, `A and B` or `A, B and C`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def person(rng: random.Random, pool: Pool, traits: int | None = None) -> Record:
    """Somebody, and a few traits."""
    name = pools.name(rng, pool)
    chosen = rng.sample(_TRAITS, traits or rng.randint(1, 4))
    facts, said = [Fact(_NAME, name, STRING)], []
    for trait in chosen:
        value = trait.draw(rng, pool)
        facts.append(Fact(trait.names, value, trait.schema))
        said.append(rng.choice(trait.says).format(n=name, v=value))
    unsaid = tuple(Fact(t.names, None, t.schema) for t in _TRAITS if t not in chosen)
    text = ". ".join(clause[0].upper() + clause[1:] for clause in said) if rng.random() < 0.6 else _run_on(said)
    return Record("Person", text + ".", tuple(facts), unsaid)


def _run_on(clauses: list[str]) -> str:
    text = listing(clauses)
    return text[0].upper() + text[1:]


def event(rng: random.Random, pool: Pool) -> Record:
    """An entry of a calendar."""
    kinds = ("lunch", "meeting", "review", "call", "interview", "dinner")
    kind, time, day = rng.choice(kinds), pools.clock(rng, pool), arguments.date(rng, pool)
    guests = [pools.name(rng, pool) for _ in range(rng.choice((1, 1, 2, 3)))]
    shape = rng.choice(("{k} with {g} on {d} at {t}.", "on {d} at {t} there is a {k} with {g}.", "{d}, {t}: {k}, {g}."))
    text = shape.format(k=kind, g=listing(guests), d=day, t=time)
    people: Fact = Fact(("people", "guests", "attendees", "names"), guests, {"type": "array", "items": STRING})
    if len(guests) == 1 and rng.random() < 0.7:
        people = Fact(("guest", "attendee", *_NAME), guests[0], STRING)
    sort = {"enum": list(kinds), "type": "string"} if rng.random() < 0.5 else STRING
    facts = (
        Fact(("kind", "type", "event"), kind, sort),
        people,
        Fact(("day", "date", "when"), day, STRING),
        Fact(("time", "start", "at"), time, STRING),
    )
    return Record("Event", text[0].upper() + text[1:], facts)


def order(rng: random.Random, pool: Pool) -> Record:
    """What somebody bought."""
    items = [(pools.integer(rng, pool), pools.name(rng, pool)) for _ in range(rng.randint(1, 3))]
    customer, number, total = pools.name(rng, pool), pools.code(rng, pool), pools.number(rng, pool)
    bought = listing([f"{count} {product}" for count, product in items])
    text = rng.choice(
        ("{c} ordered {b}. Order {n}, {t} EUR.", "Order {n}: {b} for {c}, {t} EUR in all.", "{n}: {c}, {b}, {t} EUR.")
    ).format(c=customer, b=bought, n=number, t=total)
    product, count = rng.choice(("product", "name", "item")), rng.choice(("count", "quantity", "amount"))
    row: Schema = {
        "type": "object",
        "properties": {product: STRING, count: INTEGER},
        "required": [product, count],
        "title": "Item",
    }
    facts = (
        Fact(("customer", "buyer", "name"), customer, STRING),
        Fact(("order", "number", "id"), number, STRING),
        Fact(("total", "price", "eur"), total, NUMBER),
        Fact(("items", "lines", "products"), [{product: p, count: n} for n, p in items], _rows(row)),
    )
    return Record("Order", text, facts)


def people(rng: random.Random, pool: Pool) -> Record:
    """Several people, one trait each."""
    trait = rng.choice(_TRAITS)
    key, field = rng.choice(_NAME), rng.choice(trait.names)
    found, said = [], []
    for _ in range(rng.randint(2, 3)):
        name, value = pools.name(rng, pool), trait.draw(rng, pool)
        found.append({key: name, field: value})
        said.append(rng.choice(trait.says).format(n=name, v=value))
    row: Schema = {
        "type": "object",
        "properties": {key: STRING, field: trait.schema},
        "required": [key, field],
        "title": "Person",
    }
    text = ". ".join(clause[0].upper() + clause[1:] for clause in said) + "."
    return Record("People", text, (Fact(("people", "persons", "list", "contacts"), found, _rows(row)),))


def _rows(row: Schema) -> Schema:
    return {"type": "array", "items": row}


def report(rng: random.Random, pool: Pool) -> Record:
    """The weather somewhere."""
    city, temp, sky = pools.name(rng, pool), rng.randint(-10, 35), rng.choice(SKIES)
    shape = rng.choice(("It is {t} degrees and {s} in {c}.", "{c}: {s}, {t} degrees.", "{c} is {s} today, at {t}."))
    choice: Schema = {"enum": list(SKIES), "type": "string"}
    facts = (
        Fact(_CITY, city, STRING),
        Fact(("temp", "temperature", "degrees"), temp, INTEGER),
        Fact(("sky", "weather", "condition"), sky, rng.choice((STRING, choice))),
        Fact(("rain", "is_rainy", "rainy"), sky == "rainy", {"type": "boolean"}),
    )
    return Record("Weather", shape.format(c=city, t=temp, s=sky), facts)


def trip(rng: random.Random, pool: Pool) -> Record:
    """A train."""
    code, time = pools.code(rng, pool), pools.clock(rng, pool)
    origin, to = pools.name(rng, pool), pools.name(rng, pool)
    shape = rng.choice(
        ("Train {k} from {o} to {d} leaves at {t}.", "{k} goes from {o} to {d} at {t}.", "{o} to {d}: {k}, {t}.")
    )
    facts = (
        Fact(("train", "number", "code"), code, STRING),
        Fact(("origin", "start", "source"), origin, STRING),
        Fact(("to", "destination", "goal"), to, STRING),
        Fact(("departs", "time", "leaves"), time, STRING),
    )
    return Record("Trip", shape.format(k=code, o=origin, d=to, t=time), facts)


def measure(rng: random.Random, pool: Pool) -> Record:
    """Something and what it weighs or holds."""
    thing, value, unit = pools.name(rng, pool), pools.number(rng, pool), rng.choice(list(UNITS))
    facts = (
        Fact(("product", "thing", "item"), thing, STRING),
        Fact(("value", "size", "amount"), value, NUMBER),
        Fact(("unit", "units"), unit, rng.choice((STRING, {"enum": list(UNITS), "type": "string"}))),
    )
    return Record(
        "Measure", rng.choice(("{x}: {v} {u}.", "One {x} is {v} {u}.")).format(x=thing, v=value, u=unit), facts
    )


RECORDS: tuple[Callable[[random.Random, Pool], Record], ...] = (
    person,
    person,
    person,
    event,
    event,
    order,
    order,
    people,
    report,
    trip,
    measure,
)
