"""Requests in which a later call needs what an earlier one returned."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from . import pools
from .arguments import Args
from .pools import Pool
from .tools import RATES, Result

Step = tuple[str, Args]
Turn = Callable[[list[Result]], list[Step]]


@dataclass(frozen=True)
class Chain:
    """A question and, turn by turn, the calls that the results so far ask for."""

    text: str
    turns: tuple[Turn, ...]


def _weather_at_package(rng: random.Random, pool: Pool) -> Chain:
    package = pools.code(rng, pool)
    ask = rng.choice(("where is package {p} and what is the weather there", "track {p} and check the weather there"))
    return Chain(
        ask.format(p=package),
        (
            lambda _: [("track", {"package": package})],
            lambda seen: [("weather", {"city": seen[0]["city"]})],
        ),
    )


def _weather_at_person(rng: random.Random, pool: Pool) -> Chain:
    name = pools.name(rng, pool)
    ask = rng.choice(("what is the weather where {n} lives", "how is the weather in the city of {n}"))
    return Chain(
        ask.format(n=name),
        (
            lambda _: [("contact", {"name": name, "field": "city"})],
            lambda seen: [("weather", {"city": seen[0]["city"]})],
        ),
    )


def _time_at_person(rng: random.Random, pool: Pool) -> Chain:
    name = pools.name(rng, pool)
    ask = rng.choice(("what time is it where {n} lives", "tell me the local time for {n}"))
    return Chain(
        ask.format(n=name),
        (
            lambda _: [("contact", {"name": name, "field": "city"})],
            lambda seen: [("clock", {"city": seen[0]["city"]})],
        ),
    )


def _price_abroad(rng: random.Random, pool: Pool) -> Chain:
    product, to = pools.name(rng, pool), rng.choice([c for c in RATES if c != "EUR"])
    ask = rng.choice(("what does {p} cost in {c}", "price of {p} in {c}", "how much {c} is one {p}"))
    return Chain(
        ask.format(p=product, c=to),
        (
            lambda _: [("stock", {"product": product})],
            lambda seen: [("exchange", {"amount": seen[0]["price"], "currency": "EUR", "to": to})],
        ),
    )


def _stock_value(rng: random.Random, pool: Pool) -> Chain:
    product = pools.name(rng, pool)
    ask = rng.choice(("what is all our {p} worth", "total value of the {p} in stock"))
    return Chain(
        ask.format(p=product),
        (
            lambda _: [("stock", {"product": product})],
            lambda seen: [("calculator", {"expression": f"{seen[0]['count']} * {seen[0]['price']}"})],
        ),
    )


def _train_reminder(rng: random.Random, pool: Pool) -> Chain:
    origin, to = pools.name(rng, pool), pools.name(rng, pool)
    ask = rng.choice(
        ("find a train from {o} to {t} and remind me when it leaves", "remind me of the next train from {o} to {t}")
    )
    return Chain(
        ask.format(o=origin, t=to),
        (
            lambda _: [("train", {"origin": origin, "to": to})],
            lambda seen: [("remind", {"text": f"take train {seen[0]['train']}", "time": seen[0]["departs"]})],
        ),
    )


def _train_to_person(rng: random.Random, pool: Pool) -> Chain:
    origin, name = pools.name(rng, pool), pools.name(rng, pool)
    ask = rng.choice(
        (
            "get me a train from {o} to where {n} lives and remind me when it leaves",
            "remind me of the next train from {o} to the city of {n}",
        )
    )
    return Chain(
        ask.format(o=origin, n=name),
        (
            lambda _: [("contact", {"name": name, "field": "city"})],
            lambda seen: [("train", {"origin": origin, "to": seen[0]["city"]})],
            lambda seen: [("remind", {"text": f"take train {seen[1]['train']}", "time": seen[1]["departs"]})],
        ),
    )


def _weather_and_time_at_package(rng: random.Random, pool: Pool) -> Chain:
    package = pools.code(rng, pool)
    ask = rng.choice(
        (
            "where is package {p}, and what are the weather and the time there",
            "track {p}, then the weather and the time there",
        )
    )
    return Chain(
        ask.format(p=package),
        (
            lambda _: [("track", {"package": package})],
            lambda seen: [("weather", {"city": seen[0]["city"]}), ("clock", {"city": seen[0]["city"]})],
        ),
    )


Maker = Callable[[random.Random, Pool], Chain]

# The tools that each chain needs, and its maker.
TWO_CALLS: tuple[tuple[tuple[str, ...], Maker], ...] = (
    (("track", "weather"), _weather_at_package),
    (("contact", "weather"), _weather_at_person),
    (("contact", "clock"), _time_at_person),
    (("stock", "exchange"), _price_abroad),
    (("stock", "calculator"), _stock_value),
    (("train", "remind"), _train_reminder),
)
THREE_CALLS: tuple[tuple[tuple[str, ...], Maker], ...] = (
    (("contact", "train", "remind"), _train_to_person),
    (("track", "weather", "clock"), _weather_and_time_at_package),
)
