"""Timeouts whose clock stands for a while."""

from __future__ import annotations

import math

import anyio
import pytest

from agentkv._aio.scope import move_on_after
from tests.waiting import NEVER, SOON

pytestmark = pytest.mark.anyio


async def test_time_that_is_left_stays_while_the_clock_stands() -> None:
    with move_on_after(NEVER) as _:
        pass
    scope = move_on_after(NEVER)
    with scope:
        scope.stop_clock()
        scope.stop_clock()
        assert scope._scope.deadline == math.inf
        scope.start_clock()
        scope.start_clock()
        assert anyio.current_time() < scope._scope.deadline <= anyio.current_time() + NEVER


async def test_the_clock_ends_it_once_it_goes_on() -> None:
    scope = move_on_after(SOON)
    scope.stop_clock()
    with scope:
        scope.start_clock()
        await anyio.sleep(NEVER)


@pytest.mark.parametrize("before", [False, True])
async def test_it_is_cancelled_before_it_begins_or_within(before: bool) -> None:
    scope = move_on_after(math.inf)
    if before:
        scope.cancel()
    with scope:
        if not before:
            scope.cancel()
        await anyio.sleep(NEVER)
