"""Signals as they arrive, also on event loops that have no handlers for them."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from .host import current_event_loop


@contextmanager
def received_signals(*kinds: signal.Signals) -> Iterator[AsyncIterator[signal.Signals]]:
    """Receives signals for the length of a block, on the main thread. Yields an iterator over them, in the order in
    which they arrive. Handlers from before are put back; blocks for the same signals do not nest."""
    with ExitStack() as stack:
        for kind in kinds:
            stack.callback(_put_back, kind, signal.getsignal(kind))  # asyncio leaves Python's default
        try:
            signals = stack.enter_context(anyio.open_signal_receiver(*kinds))
        except NotImplementedError:  # asyncio on Windows
            signals = stack.enter_context(_received_by_python(kinds))
        yield signals


@contextmanager
def _received_by_python(kinds: tuple[signal.Signals, ...]) -> Iterator[AsyncIterator[signal.Signals]]:
    """Has handlers of Python's own hand the signals to the event loop. Leaves them there."""
    loop = current_event_loop()
    arrived, signals = anyio.create_memory_object_stream[signal.Signals](math.inf)

    def hand_over(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(partial(_send, arrived, signal.Signals(number)))

    with arrived, signals:
        for kind in kinds:
            signal.signal(kind, hand_over)
        yield signals


def _put_back(kind: signal.Signals, handler: Any) -> None:
    """Makes it the handler again, where it is another by now; one that is not Python's cannot be put back."""
    if signal.getsignal(kind) != handler:
        signal.signal(kind, signal.SIG_DFL if handler is None else handler)


def _send(arrived: MemoryObjectSendStream[signal.Signals], number: signal.Signals) -> None:
    with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the block is over
        arrived.send_nowait(number)
