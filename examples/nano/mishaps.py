"""What goes wrong with calls: failures to report, and failures after which the call is to be made again."""

from __future__ import annotations

import random

from . import pools
from .arguments import Args
from .pools import Pool
from .tools import Result

ERRORS = ("timeout", "offline", "busy", "not found", "access denied")
_KINDS = ("ValueError", "ConnectionError", "RuntimeError", "TimeoutError", "OSError", "KeyError")
_WHY = ("the shop is closed", "no connection", "it was not approved", "not now", "the server is down", "out of range")
_AGAIN = ("try again", "busy, try again", "timeout, try again", "no answer, please try again")
_MEANT = ("no {key} {old}, did you mean {new}?", "unknown {key} {old}, try {new}", "{old} is not known, use {new}")


def failure(rng: random.Random, pool: Pool) -> Result:
    """What a tool says that has failed for good, or that was not allowed or too slow."""
    kind = rng.random()
    if kind < 0.4:
        return {"error": rng.choice(ERRORS)}
    if kind < 0.55:
        return {"error": f"it took longer than {rng.choice((rng.randint(1, 60), round(rng.random(), 2)))} s"}
    why = rng.choice(_WHY) if rng.random() < 0.6 else " ".join(pools.word(rng, pool) for _ in range(rng.randint(1, 4)))
    return {"error": f"{'denied' if kind < 0.75 else rng.choice(_KINDS)}: {why}"}


def second_try(rng: random.Random, pool: Pool, args: Args) -> tuple[Result, Args]:
    """What a tool says that wants to be called again, and the arguments of the next call."""
    named = [key for key in ("city", "product", "query", "name", "origin", "to", "item") if _is_name(args.get(key))]
    if not named or rng.random() < 0.4:
        return {"error": rng.choice(_AGAIN)}, args
    key = rng.choice(named)
    new = pools.name(rng, pool)
    return {"error": rng.choice(_MEANT).format(key=key, old=args[key], new=new)}, {**args, key: new}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value[:1].isupper() and not value.isupper()
