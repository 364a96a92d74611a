"""Values of every kind that no parameter, or only some, can take; drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np


class Raises:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("repr")

    def __len__(self) -> int:
        raise ZeroDivisionError("len")

    def __iter__(self) -> Any:
        raise ZeroDivisionError("iter")

    def __getitem__(self, key: object) -> Any:
        raise ZeroDivisionError("getitem")

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("eq")

    def __bool__(self) -> bool:
        raise ZeroDivisionError("bool")

    def __index__(self) -> int:
        raise ZeroDivisionError("index")

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise ZeroDivisionError("array")

    __hash__ = object.__hash__


class RaisingList(list):  # type: ignore[type-arg]
    """A list whose items cannot be had."""

    def __iter__(self) -> Any:
        raise ZeroDivisionError("iter")

    def __getitem__(self, key: object) -> Any:
        raise ZeroDivisionError("getitem")


class RaisingDict(dict):  # type: ignore[type-arg]
    """A mapping whose items cannot be had."""

    def __iter__(self) -> Any:
        raise ZeroDivisionError("iter")

    def items(self) -> Any:
        raise ZeroDivisionError("items")


class Text(str):
    """A str whose methods raise."""

    def encode(self, *args: object, **kwargs: object) -> Any:
        raise ZeroDivisionError("encode")

    def __str__(self) -> str:
        raise ZeroDivisionError("str")


class Lengthy:
    """Says that it has a negative number of items."""

    def __len__(self) -> int:
        return -1


async def coroutine_function() -> None:
    """Awaits nothing."""


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def endless() -> Any:
    value: Any = {"role": "user", "content": "x"}
    value["more"] = value
    return value


SIMPLE: tuple[Callable[[], Any], ...] = (
    *(lambda v=v: v for v in (None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -1.5, 1e308)),
    *(lambda v=v: v for v in (float("nan"), float("inf"), -float("inf"), 1j, "", "x", "\0", "\ud800", "a\udcffb", b"")),
    *(
        lambda v=v: v
        for v in (b"x", b"\xff", "<|im_end|>", "~nobody-there/x", "cpu", "fp32", "\U0001f642", "\r\n", "text")
    ),
    *(
        object,
        Raises,
        Lengthy,
        Text,
        lambda: Text("text"),
        lambda: coroutine_function,
        lambda: len,
        lambda: int,
        lambda: ...,
    ),
    *(list, dict, set, tuple, lambda: {1, 2}, lambda: iter([1, 2]), lambda: (i for i in (1, 2)), lambda: range(3)),
    *(lambda: range(10**15), lambda: RaisingList([1]), lambda: RaisingList([{"role": "user"}]), lambda: nested(3)),
    *(
        lambda: nested(2000),
        lambda: RaisingDict(role="user", content="x"),
        lambda: [endless()],
        lambda: bytearray(b"x"),
    ),
    *(
        lambda: memoryview(b"x"),
        lambda: np.int64(3),
        lambda: np.float32(3),
        lambda: np.bool_(True),
        lambda: np.str_("x"),
    ),
    *(
        lambda: np.zeros(3),
        lambda: np.array(3),
        lambda: np.zeros((2, 2), int),
        lambda: np.array(["x"]),
        lambda: slice(1),
    ),
    *(lambda: np.array([object()]), lambda: np.array([1, 2], np.uint8), lambda: np.array([2**63], np.uint64)),
    *(lambda: np.array([1], "M8[s]"), lambda: np.zeros(2, [("a", int)]), lambda: np.array([], int), lambda: [1, "x"]),
    *(
        lambda: [None],
        lambda: [[1], [2, 3]],
        lambda: [1.5],
        lambda: [-1],
        lambda: [2**40],
        lambda: [True],
        lambda: ["", ""],
    ),
)


def message(rng: random.Random) -> Any:
    """A chat message, some of it bad."""
    made: Any = {"role": "user", "content": "x"}
    for _ in range(rng.randint(0, 2)):
        key = rng.choice(["role", "content", "tool_calls", "name", "more", "\ud800", 5, "content"])
        made[key] = value(rng)
    return rng.choice([made] * 4 + [value(rng)])


def value(rng: random.Random) -> Any:
    """Anything."""
    kind = rng.random()
    if kind < 0.8:
        return rng.choice(SIMPLE)()
    if kind < 0.9:
        return [message(rng) for _ in range(rng.randint(1, 3))]
    if kind < 0.95:
        return [{"type": rng.choice(["text", "image_url", None]), "text": value(rng)}]
    return {rng.choice(["a", 5, "\ud800", "function"]): value(rng)}
