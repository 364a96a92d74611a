"""Timing of calls beside each other: machines that others use too are slow and fast in turns."""

from __future__ import annotations

import time
from collections.abc import Callable


def time_in_turns(
    seconds: float, *calls: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of every run of each call, taken in turns for so long, at least five times; one run each warms up.

    `time.process_time` as the clock leaves out what other processes take, for calls that run on one thread.
    """
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, kept in zip(calls, times, strict=True):
            start = clock()
            call()
            kept.append(clock() - start)
    return times
