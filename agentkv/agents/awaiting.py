"""Callbacks of users, plain or async."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import TypeVar, cast

T = TypeVar("T")


async def awaited(value: Awaitable[T] | T) -> T:
    """What a callback returned, waited for where it is to be."""
    return cast(T, await value if inspect.isawaitable(value) else value)
