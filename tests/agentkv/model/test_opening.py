"""What opens a Context, and what only looks as if it did."""

from __future__ import annotations

import pytest

import agentkv as kv


def test_what_opens_nothing_says_what_does() -> None:
    opening = kv.Context.open(kv.models.nano())
    with pytest.raises(AttributeError, match=r"no branch: write `async with .*`\.sync\(\)`"):
        opening.branch("Hello")
    with pytest.raises(kv.InvalidInput, match="`with` opens nothing here: write `async with"), opening:
        pass


async def _awaits() -> None:
    await kv.Context.open(kv.models.nano())


@pytest.mark.anyio
async def test_awaiting_opens_nothing() -> None:
    with pytest.raises(kv.InvalidInput, match="`await` opens nothing here"):
        await _awaits()
