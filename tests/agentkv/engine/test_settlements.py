"""Whatever a command or its settlement raises is its own: those beside it are settled all the same."""

from __future__ import annotations

import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._engine.commands import Job
from agentkv._engine.worker import EngineWorker, OutcomeBatch
from tests.waiting import PATIENCE, until_sync

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio


class Unusual(BaseException):
    """Neither an error nor a cancellation."""


def raising(*_: object) -> Any:
    raise Unusual("as it happens")


async def outcomes(*commands: Any) -> list[str]:
    """What so many awaitables come to, all at once."""
    ends = [""] * len(commands)

    async def one(index: int, command: Any) -> None:
        try:
            await command
        except Unusual:
            ends[index] = "unusual"
        else:
            ends[index] = "done"

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for index, command in enumerate(commands):
                group.start_soon(one, index, command)
    return ends


async def test_a_settlement_that_raises(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        kids = await trunk.fork(6)

        def job(branch: kv.Branch, finish: Any) -> Any:
            return ctx._core.loop.run(Job(lambda engine: engine.extend(branch.id, [5, 6]), finish))

        ends = await outcomes(*(job(kid, raising if index % 2 else lambda _: None) for index, kid in enumerate(kids)))
        assert ends == ["done", "unusual"] * 3
        assert all(kid.tokens[-2:] == [5, 6] for kid in kids)
        assert len((await trunk.generate(max_tokens=3)).tokens) == 3


async def test_a_command_that_raises(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        ends = await outcomes(
            ctx._core.loop.call(raising),
            trunk.fork(2),
            ctx._core.loop.run(Job(raising, lambda _: None)),
            trunk.logits(),
            ctx._core.loop.call(raising),
            ctx.branch("more"),
        )
        assert ends == ["unusual", "done", "unusual", "done", "unusual", "done"]
        assert len((await trunk.generate(max_tokens=3)).tokens) == 3


async def test_an_undo_that_raises(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        with anyio.fail_after(PATIENCE), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(ctx._core.loop.call, lambda _: None, raising)
                group.start_soon(trunk.extend, [5] * 400)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                scope.cancel()
        assert trunk.text == "The quick"
        assert len((await trunk.generate(max_tokens=3)).tokens) == 3


async def test_what_a_signal_interrupts_is_settled_later(open_context: OpenContext) -> None:
    """An exception in the middle of a post, as a signal may raise one anywhere, loses nothing."""
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick")
        loop, settled = ctx._core.loop, []
        raised: list[int] = []

        def interrupted() -> None:  # in the middle: the next time it goes through
            if len(raised) < 2:
                raised.append(1)
                raise Unusual
            settled.append("at last")

        loop._posts.append(
            OutcomeBatch([lambda: settled.append("before"), interrupted, lambda: settled.append("behind")], 1)
        )
        for _ in range(2):
            with pytest.raises(Unusual):
                loop._settle_posts()
        loop._settle_posts()
        assert settled == ["before", "at last", "behind"]
        await ctx._core.loop.call(lambda _: None)
        assert len((await trunk.generate(max_tokens=2)).tokens) == 2


@pytest.mark.parametrize(
    ("owner", "name", "kth"),
    [
        (Job, "end", 0),
        (EngineWorker, "_apply", 0),
        (EngineWorker, "_apply", 3),
        (EngineWorker, "report", 0),
        (EngineWorker, "report", 5),
        (EngineWorker, "_apply_report", 4),
        (EngineWorker, "_publish", 2),
        (EngineWorker, "_queue_log_changes", 1),
        (EngineWorker, "step", 2),
    ],
)
async def test_no_memory_in_the_bookkeeping(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, kth: int
) -> None:
    """Whatever of it fails once, everybody who waits is told."""
    await fail_once(open_context, monkeypatch, owner, name, kth)


async def fail_once(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, kth: int
) -> None:
    """Tasks generate, extend and fork while a method of the bookkeeping raises, the first time but `kth`."""
    real, calls = getattr(owner, name), []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == kth + 1:
            raise MemoryError
        return real(*arguments)

    ends: list[str] = []

    async def generate(branch: kv.Branch) -> None:
        try:
            await branch.generate(max_tokens=20)
            await branch.extend([5, 6])
            await branch.fork(2)
        except kv.AgentKVError as error:
            ends.append(type(error).__name__)
        except MemoryError:
            ends.append("MemoryError")
        else:
            ends.append("done")

    with anyio.fail_after(PATIENCE):
        async with open_context() as ctx:
            kids = await (await ctx.branch("The quick")).fork(4)
            monkeypatch.setattr(owner, name, failing)
            async with anyio.create_task_group() as inner:  # all end, and not because the Context is left
                for kid in kids:
                    inner.start_soon(generate, kid)
    assert len(ends) == 4
    assert len(calls) > kth


@pytest.mark.parametrize("lost", ["what is to be sent", "what is to be settled"])
async def test_a_callback_that_a_signal_kept_from_running_hangs_nobody_who_leaves(
    open_context: OpenContext, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("abc")
        if lost == "what is to be sent":
            ctx._core.loop._debouncer._ticking = True  # a tick is under way, and never comes
        else:
            monkeypatch.setattr(ctx._core.loop._event_loop, "call_soon_threadsafe", lambda callback: True)
        with anyio.fail_after(PATIENCE):
            await branch.close()
        monkeypatch.undo()
        assert ctx._core.loop._commands.unfinished() == []
    assert not ctx._core.loop.is_open


VERBS: dict[str, Callable[[kv.Branch], Awaitable[object]]] = {
    "generate": lambda branch: branch.generate(max_tokens=2),
    "extend": lambda branch: branch.extend("more"),
    "extend by messages": lambda branch: branch.extend([{"role": "user", "content": "more"}]),
    "rollback": lambda branch: branch.rollback(2),
    "logits": lambda branch: branch.logits(),
    "fork": lambda branch: branch.fork(),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_branch_is_given_up_once_its_verbs_are_settled(
    open_context: OpenContext, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        post, looked, idle = ctx._core.loop._worker._post, threading.Event(), threading.Event()

        def post_and_pause(made: OutcomeBatch) -> bool:
            went = post(made)
            until_sync(lambda: looked.is_set() or idle.is_set())  # the thread comes no further for a while
            idle.clear()
            return went

        async def let_on() -> None:
            """Lets the thread go on where the verb waits for it."""
            while True:
                await anyio.wait_all_tasks_blocked()
                idle.set()

        monkeypatch.setattr(ctx._core.loop._worker, "_post", post_and_pause)
        async with anyio.create_task_group() as group:
            group.start_soon(let_on)
            await VERBS[verb](branch)
            del branch
            gc.collect()
            left = ctx.branches
            looked.set()
            group.cancel_scope.cancel()
        assert len(left) == 0
