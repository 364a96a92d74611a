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

    tasks.start(work, go.set, "work")
    gc.collect()
    with anyio.fail_after(PATIENCE):
        await came.wait()
        (ended,) = tasks.end()
        await ended.wait()
    assert tasks.end() == []


@pytest.mark.parametrize("begun", [False, True])
async def test_all_tasks_are_told_to_end(begun: bool) -> None:
    tasks, left = BackgroundTasks(), list[str]()

    def start(name: str) -> None:
        scope = anyio.CancelScope()

        async def work() -> None:
            with scope:
                await anyio.sleep_forever()
            left.append(name)

        tasks.start(work, scope.cancel, name)

    start("one")
    start("two")
    if begun:
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    with anyio.fail_after(PATIENCE):
        for ended in tasks.end():
            await ended.wait()
    assert sorted(left) == ["one", "two"]
    assert tasks.end() == []
