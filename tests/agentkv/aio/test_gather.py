"""gather: results in order, one failure raised as itself."""

from __future__ import annotations

import anyio
import pytest

import agentkv as kv
from tests.waiting import SOON

pytestmark = pytest.mark.anyio


async def value_after(ticks: int, value: int) -> int:
    for _ in range(ticks):
        await anyio.lowlevel.checkpoint()
    return value


async def test_results_come_in_order() -> None:
    assert await kv.gather(value_after(5, 1), value_after(0, 2), value_after(2, 3)) == [1, 2, 3]
    assert await kv.gather() == []


async def test_one_failure_cancels_the_rest_and_is_raised_itself() -> None:
    cancelled = []

    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(True)
            raise

    async def fails() -> None:
        await anyio.lowlevel.checkpoint()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await kv.gather(waits(), fails(), waits())
    assert cancelled == [True, True]


async def test_what_cannot_be_awaited_is_refused_before_anything_runs(recwarn: pytest.WarningsRecorder) -> None:
    ran = []

    async def run() -> None:
        ran.append(True)

    for bad in (None, 5, run, [run], "x", object()):
        with pytest.raises(kv.InvalidInput, match="awaitable 1"):
            await kv.gather(run(), bad)  # type: ignore[arg-type]
    with pytest.raises(kv.InvalidInput, match=r"gather\(\*awaitables\)"):
        await kv.gather([])  # type: ignore[arg-type]
    once = run()
    with pytest.raises(kv.InvalidInput, match="awaited already"):
        await kv.gather(once, once)
    assert not ran
    once = run()
    await once
    with pytest.raises(kv.InvalidInput, match="awaited already"):
        await kv.gather(once)
    assert not [w for w in recwarn if "never awaited" in str(w.message)]


async def test_cancellation_from_outside_goes_through() -> None:
    with anyio.move_on_after(SOON) as scope:
        await kv.gather(anyio.sleep_forever(), anyio.sleep_forever())
    assert scope.cancelled_caught


async def test_a_failure_at_the_first_step_leaves_no_coroutine_unawaited(recwarn: pytest.WarningsRecorder) -> None:
    async def fails() -> None:
        raise KeyError("at once")

    with anyio.CancelScope() as scope:
        scope.cancel()
        await kv.gather(fails(), value_after(1, 1))
    with pytest.raises(KeyError):
        await kv.gather(fails(), value_after(1, 1), fails())
    assert not [w for w in recwarn if "never awaited" in str(w.message)]
