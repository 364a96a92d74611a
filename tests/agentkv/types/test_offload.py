"""`kv.Offload` and `Branch.priority`: values that are refused, and one that is brought into range."""

from __future__ import annotations

import math
from typing import Any

import pytest

import agentkv as kv

pytestmark = pytest.mark.anyio


def opened(**options: Any) -> Any:
    return kv.Context.open(kv.models.nano(), capacity=180, **options)


BAD = [
    {"memory_bytes": -1}, {"memory_bytes": 1.5}, {"disk_bytes": "1"}, {"ttl": -1}, {"ttl": math.inf}, {"ttl": True},
    {"idle": math.nan}, {"idle": "soon"}, {"folder": 3}, {"folder": "a\0b"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", BAD, ids=str)
async def test_a_policy_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(kv.InvalidInput, match=next(iter(wrong))):
        kv.Offload(**wrong)


@pytest.mark.parametrize("wrong", [True, "memory", 3, kv.Offload], ids=str)
async def test_what_is_no_policy_is_refused(wrong: Any) -> None:
    with pytest.raises(kv.InvalidInput, match=r"kv\.Offload"):
        async with opened(offload=wrong):
            pass


async def test_a_priority_beyond_all_floats_is_a_high_one() -> None:
    async with opened() as ctx:
        branch = await ctx.branch("Hello")
        branch.priority = 10**400
        assert 2**60 < branch.priority < math.inf


@pytest.mark.parametrize("wrong", ["high", None, math.nan, True], ids=str)
async def test_a_priority_that_is_no_number_is_refused(wrong: Any) -> None:
    async with opened() as ctx:
        branch = await ctx.branch("Hello")
        with pytest.raises(kv.InvalidInput, match="priority"):
            branch.priority = wrong
        assert branch.priority == 0
