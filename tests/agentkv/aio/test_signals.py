"""Signals arrive in their order, on event loops with handlers for them and on those without."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from agentkv._aio.signals import received_signals
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio
AGENTKV = Path(__file__).resolve().parents[3] / "agentkv"
KINDS = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(params=["handlers", "no handlers"])
def handlers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of asyncio's loops: Windows' have none."""

    def lacks(*_: object) -> None:
        raise NotImplementedError

    if request.param == "no handlers":
        monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", lacks)


@pytest.mark.usefixtures("handlers")
async def test_they_arrive_in_order() -> None:
    with received_signals(*KINDS) as signals, anyio.fail_after(PATIENCE):
        signal.raise_signal(KINDS[1])
        assert await anext(signals) == KINDS[1]
        async with anyio.create_task_group() as group:
            group.start_soon(_raise_soon, KINDS[0])
            assert await anext(signals) == KINDS[0]


@pytest.mark.usefixtures("handlers")
async def test_who_waits_can_be_cancelled() -> None:
    with received_signals(*KINDS) as signals, anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(anext, signals)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio raises anew what nobody took
@pytest.mark.usefixtures("handlers")
async def test_handlers_of_before_are_put_back() -> None:
    def of_before(*_: object) -> None:
        pass

    earlier = signal.signal(KINDS[0], of_before)
    try:
        with received_signals(*KINDS):
            assert signal.getsignal(KINDS[0]) is not of_before
            signal.raise_signal(KINDS[0])  # reaches the loop behind the block
        assert signal.getsignal(KINDS[0]) is of_before
        assert signal.getsignal(KINDS[1]) == signal.SIG_DFL
        await anyio.lowlevel.checkpoint()
    finally:
        signal.signal(KINDS[0], earlier)


def test_nobody_asks_an_event_loop_that_may_have_none() -> None:
    asks = re.compile(r"\b(open_signal_receiver|add_signal_handler)\b")
    assert [path.name for path in AGENTKV.rglob("*.py") if asks.search(path.read_text())] == ["signals.py"]


@pytest.mark.usefixtures("handlers")
async def test_on_another_thread_it_is_refused_and_nothing_is_changed() -> None:
    before = [signal.getsignal(kind) for kind in KINDS]

    async def receive() -> None:
        with received_signals(*KINDS):
            pass

    with pytest.raises((RuntimeError, ValueError), match="main thread"):
        await anyio.to_thread.run_sync(anyio.run, receive)
    assert [signal.getsignal(kind) for kind in KINDS] == before


async def _raise_soon(number: signal.Signals) -> None:
    await anyio.lowlevel.checkpoint()
    signal.raise_signal(number)
