"""Tasks of no task group."""

from __future__ import annotations

import gc

import anyio
import pytest

from agentkv._aio.background import BackgroundTasks
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def test_a_task_runs_beside_its_starter_and_ends_by_itself() -> None:
    tasks, came, go = BackgroundTasks(), anyio.Event(), anyio.Event()

    async def work() -> None:
        came.set()
        await go.wait()

    tasks.start(work, "work")
    gc.collect()
    with anyio.fail_after(PATIENCE):
        await came.wait()
        (ended,) = [*tasks._ends.values()]
        go.set()
        await ended.wait()
    assert tasks.cancel() == []


@pytest.mark.parametrize("begun", [False, True])
async def test_cancel_ends_all_tasks(begun: bool) -> None:
    tasks, left = BackgroundTasks(), list[str]()

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            left.append("work")

    tasks.start(work, "one")
    tasks.start(work, "two")
    if begun:
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    with anyio.fail_after(PATIENCE):
        for ended in tasks.cancel():
            await ended.wait()
    assert left == ["work"] * 2
    assert tasks.cancel() == []
