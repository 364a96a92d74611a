"""What goes wrong with calls: failures to report, and failures after which the call is to be made again."""

from __future__ import annotations

import random

from . import pools
from .arguments import Args
from .pools import Pool
from .tools import Result

ERRORS = ("timeout", "offline", "busy", "not found", "access denied")
_AGAIN = ("try again", "busy, try again", "timeout, try again", "no answer, please try again")
_MEANT = ("no {key} {old}, did you mean {new}?", "unknown {key} {old}, try {new}", "{old} is not known, use {new}")


def failure(rng: random.Random) -> Result:
    """What a tool says that has failed for good."""
    return {"error": rng.choice(ERRORS)}


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
