"""Random words, pauses and ends of turns: nothing of a conversation is lost, and no cell leaks."""

from __future__ import annotations

import pytest

from .conftest import OpenDesk
from .steered_turns import VERBS, least, steered_turns

pytestmark = pytest.mark.anyio


async def test_nothing_is_lost_however_turns_are_steered(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        counts = await steered_turns(ctx, seed=5, turns=60)
    assert least(counts, *VERBS, "done") > 0, counts


@pytest.mark.soak
async def test_nothing_is_lost_in_ten_thousand_steers(open_desk: OpenDesk, soak_count: int) -> None:
    async with open_desk() as ctx:
        counts = await steered_turns(ctx, seed=6, turns=soak_count // 3)
    print(counts)
