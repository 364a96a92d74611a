"""Arguments of tool calls: whose names, numbers, times and ids come from one pool."""

from __future__ import annotations

import random
from typing import Any

from . import pools
from .pools import Pool
from .tools import DAYS, RATES, UNITS

Args = dict[str, Any]

MONTHS = "January February March April May June July August September October November December".split()  # noqa: SIM905


def date(rng: random.Random, pool: Pool) -> str:
    """A day of the year from the pool, or in training also a weekday (there are too few to hold any out)."""
    if pool == "train" and rng.random() < 0.4:
        return rng.choice(DAYS)
    return pools.draw(rng, pool, lambda r: f"{r.randint(1, 28)} {r.choice(MONTHS)}")


def title(rng: random.Random, pool: Pool) -> str:
    """What a calendar entry is called."""
    kind = rng.choice(("lunch", "meeting", "review", "call", "interview", "dinner", "training", "checkup"))
    return f"{kind} with {pools.name(rng, pool)}"


def errand(rng: random.Random, pool: Pool) -> str:
    """Something to do."""
    verb = rng.choice(("call", "email", "pay", "visit", "thank", "invite", "order flowers for", "write to", "ask"))
    return f"{verb} {pools.name(rng, pool)}"


def message(rng: random.Random, pool: Pool) -> str:
    """Something to tell somebody."""
    thing = rng.choice(("meeting", "lunch", "review", "train", "dinner", "call"))
    shape = rng.choice(("the {t} is at {c}", "the {t} is in room {n}", "the {t} moved to {c}", "we need {n} chairs"))
    return shape.format(t=thing, c=pools.clock(rng, pool), n=pools.integer(rng, pool))


def expression(rng: random.Random, pool: Pool) -> Args:
    """A sum, difference, product or quotient, or a bracket and a product."""
    a, b, c = (pools.number(rng, pool) for _ in range(3))
    sign = rng.choice("++--**/()")
    return {"expression": f"({a} + {b}) * {c}" if sign in "()" else f"{a} {sign} {b}"}


def conversion(rng: random.Random, pool: Pool) -> Args:
    """A number and two units of one dimension."""
    unit = rng.choice(list(UNITS))
    to = rng.choice([u for u in UNITS if u != unit and UNITS[u][0] == UNITS[unit][0]])
    return {"value": pools.number(rng, pool), "unit": unit, "to": to}


def exchange(rng: random.Random, pool: Pool) -> Args:
    """An amount and two currencies."""
    currency, to = rng.sample(list(RATES), 2)
    return {"amount": pools.number(rng, pool), "currency": currency, "to": to}


def trip(rng: random.Random, pool: Pool) -> Args:
    """Two cities."""
    return {"origin": pools.name(rng, pool), "to": pools.name(rng, pool)}


def city(rng: random.Random, pool: Pool) -> Args:
    """One city."""
    return {"city": pools.name(rng, pool)}
