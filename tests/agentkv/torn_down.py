"""Coroutines that are torn down, as garbage collection and event loops that end do it: closed, from another task."""

from __future__ import annotations

import asyncio
import itertools
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any


async def torn_down_at(work: Coroutine[Any, Any, Any], suspension: int) -> bool:
    """Runs `work` in a task of its own up to a suspension, counted from 0, and closes it there. False where it ended
    before. Raises what it does instead of ending when it is closed."""
    reached = asyncio.Event()

    @types.coroutine
    def stepped() -> Generator[Any, Any, None]:
        step: Callable[[Any], Any] = work.send
        answer: Any = None
        for number in itertools.count():
            try:
                waits = step(answer)
            except StopIteration:
                return
            if number == suspension:
                reached.set()
            try:
                step, answer = work.send, (yield waits)
            except BaseException as error:
                if reached.is_set():
                    raise
                step, answer = work.throw, error
            if reached.is_set():
                yield from asyncio.Event().wait().__await__()  # for its end

    async def run() -> None:
        await stepped()

    task = asyncio.create_task(run())
    arrived = asyncio.create_task(reached.wait())
    await asyncio.wait([task, arrived], return_when=asyncio.FIRST_COMPLETED)
    arrived.cancel()
    if not reached.is_set():
        await task
        return False
    try:
        work.close()
    except RuntimeError as error:
        if "ignored GeneratorExit" in str(error):
            raise
        # Else it is of a scope or a limiter inside of anyio, which are their task's: the coroutine has ended.
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return True
