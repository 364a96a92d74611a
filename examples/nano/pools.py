"""Names, words, numbers, times and ids, in a training pool and a held-out pool that never meet.

Every value is written out as a string and hashed; the hash alone says which pool it belongs to. A
value can therefore be drawn without a list of the others, and no value is ever in both pools.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Literal

Pool = Literal["train", "eval"]

_ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pr r s sh st t tr v w y z".split()  # noqa: SIM905
_VOWELS = "a a e e i i o o u ai ea ia ou".split()  # noqa: SIM905
_CODAS = ("", "", "", "l", "m", "n", "r", "s", "t", "x", "nd", "rk", "th")
_PIECES = """
an ar en er in on or al el la ma ra ta be ca da de di do fa ho le li lo mi mo na ne ni no pa pe pi re ri ro sa se si
te ti to un ver mar ter ton land ford berg burg stone wood field lum cor vel dor gar hal kel mir nor sol tar val wen
""".split()  # noqa: SIM905
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_REAL = """
Oslo Paris London Lisbon Berlin Madrid Rome Vienna Prague Dublin Tokyo Boston Chicago Seattle Denver
Austin Toronto Sydney Bergen Helsinki Stockholm Munich Hamburg Milan Porto Athens Cairo Delhi Lima Quito
Geneva Zurich Basel Marta Anna Ben Clara David Emma Felix Grace Hugo Ivan Julia Karl Laura Max Nina Oscar
Paula Quinn Rosa Sam Tom Uma Vera Walter Xenia Yara Zoe Alice Bob Carol Dan Eve Frank Ines Jonas Lena Mia
Noah Olivia Peter Ruth Sofia
""".split()  # noqa: SIM905


def digest(*parts: object) -> int:
    """A stable 64-bit hash of the parts' text, the same in every process and on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def pool_of(value: object) -> Pool:
    """The only pool in which `value` may be drawn; one value in eight is held out."""
    return "eval" if digest("pool", value) % 8 == 0 else "train"


def draw(rng: random.Random, pool: Pool, make: Callable[[random.Random], str]) -> str:
    """Draw from `make` until the value belongs to `pool`."""
    while True:
        value = make(rng)
        if pool_of(value) == pool:
            return value


def _syllables(rng: random.Random) -> str:
    count = rng.choice((2, 2, 2, 3))
    body = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count))
    return body + rng.choice(_CODAS)


def _name(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.12:
        return rng.choice(_REAL)
    # Letters in no pronounceable order leave copying as the only way to get a name right.
    if kind < 0.24:
        return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(3, 7))).capitalize()
    # Pieces of ordinary words: a tokenizer cuts these names where it cuts text.
    if kind < 0.4:
        return "".join(rng.choice(_PIECES) for _ in range(rng.randint(2, 3))).capitalize()
    return _syllables(rng).capitalize()


def name(rng: random.Random, pool: Pool) -> str:
    """A capitalised name of a person, a place or a product; sometimes two words, both from the pool."""
    first = draw(rng, pool, _name)
    return f"{first} {draw(rng, pool, _name)}" if rng.random() < 0.1 else first


def word(rng: random.Random, pool: Pool) -> str:
    """A lower-case made-up word."""
    return draw(rng, pool, _syllables)


def _integer(rng: random.Random) -> str:
    digits = rng.choice((1, 2, 2, 3, 3, 4))
    return str(rng.randint(2 if digits == 1 else 10 ** (digits - 1), 10**digits - 1))


def integer(rng: random.Random, pool: Pool) -> int:
    """A whole number from 2 to 9999."""
    return int(draw(rng, pool, _integer))


def number(rng: random.Random, pool: Pool) -> int | float:
    """A whole number, or now and then one with a decimal."""
    if rng.random() < 0.8:
        return integer(rng, pool)
    return float(draw(rng, pool, lambda r: f"{r.randint(1, 99)}.{r.randint(1, 9)}"))


def clock(rng: random.Random, pool: Pool) -> str:
    """A time of day such as 14:35."""
    return draw(rng, pool, lambda r: f"{r.randint(6, 22):02d}:{5 * r.randint(0, 11):02d}")


def code(rng: random.Random, pool: Pool) -> str:
    """An id such as PK4821."""
    return draw(rng, pool, lambda r: "".join(r.choice(_LETTERS) for _ in range(2)).upper() + str(r.randint(1000, 9999)))


def chance(rng: random.Random, probability: float) -> bool:
    """Whether something happens; what never does draws nothing, so that lessons without it stay as they are."""
    return probability > 0 and rng.random() < probability


def derived(key: object) -> tuple[random.Random, Pool]:
    """The generator and the pool for values that a tool derives from `key`.

    Results stay in their question's pool, so a held-out question meets no training name in them either.
    """
    return random.Random(digest("derived", key)), pool_of(str(key).split(" ")[0])
