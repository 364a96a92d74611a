"""How long tests wait. No test passes or fails by the clock: each waits for what happens, or never does.

tests/test_no_clock.py finds other numbers of seconds in tests.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import anyio

PATIENCE = 100.0
"""Seconds to wait for what is bound to happen: only a hang is longer, and fails."""

SOON = 0.05
"""Seconds of a limit that is meant to run out, around what would not end by itself."""

NEVER = 3600.0
"""Seconds that something takes which a test leaves before it ends."""

TICK = 0.02
"""Seconds in which the clock of a file system's time stamps moves on."""

_POLL = float(os.environ.get("AGENTKV_TESTS_POLL", "0.001"))  # a long one misses what does not stay: `make flaky`


async def until(holds: Callable[[], object]) -> None:
    """Returns once `holds()` is true; it is asked again and again, so that it has to stay true.

    Raises:
        TimeoutError: it is not true within PATIENCE.
    """
    with anyio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110 - nothing tells when
            await anyio.sleep(_POLL)


def until_sync(holds: Callable[[], object], meanwhile: Callable[[], object] = lambda: time.sleep(_POLL)) -> None:
    """`until` for a test without an event loop; `meanwhile` is what is done between two looks."""
    latest = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > latest:
            raise TimeoutError(f"not true within {PATIENCE:g} seconds")
        meanwhile()


def listens(port: int) -> bool:
    """Does something accept connections there, on this machine?"""
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except OSError:
        return False
    return True
