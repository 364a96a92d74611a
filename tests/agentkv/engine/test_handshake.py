"""How tasks that wake together come to ride together: the two halves of it, each by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from agentkv._engine.mailbox import MAX_QUIET_TICKS, FlushDebouncer, PostAcks
from tests.waiting import SOON


class Ticks:
    """An event loop that is driven by hand."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.sent = 0
        self.flush = FlushDebouncer(self.callbacks.append, self.send)

    def send(self) -> None:
        self.sent += 1

    def tick(self) -> None:
        callbacks, self.callbacks[:] = list(self.callbacks), []
        for callback in callbacks:
            callback()


def test_a_flush_waits_for_a_quiet_tick() -> None:
    ticks = Ticks()
    ticks.flush.request()
    for _ in range(5):  # something new on each of them
        ticks.tick()
        assert ticks.sent == 0
        ticks.flush.request()
    ticks.tick()
    assert ticks.sent == 0
    ticks.tick()
    assert ticks.sent == 1
    ticks.tick()
    assert (ticks.sent, ticks.callbacks) == (1, [])


def test_a_flush_is_not_put_off_for_ever() -> None:
    ticks = Ticks()
    for count in range(3 * MAX_QUIET_TICKS):
        ticks.flush.request()
        ticks.tick()
        assert ticks.sent == (count + 1) // (MAX_QUIET_TICKS + 1)


def test_a_flush_that_fails_is_tried_again() -> None:
    ticks = Ticks()
    failing = [True]

    def send() -> None:
        if failing:
            failing.clear()
            raise MemoryError
        ticks.send()

    quiet = FlushDebouncer(ticks.callbacks.append, send)
    quiet.request()
    ticks.tick()
    with pytest.raises(MemoryError):
        ticks.tick()
    ticks.tick()
    ticks.tick()
    assert ticks.sent == 1


def test_woken_tasks_get_ticks_of_their_own() -> None:
    ticks = Ticks()
    ticks.flush.request()
    for _ in range(MAX_QUIET_TICKS - 1):
        ticks.tick()
        ticks.flush.request()
    ticks.flush.restart()
    for _ in range(MAX_QUIET_TICKS):
        ticks.tick()
        ticks.flush.request()
    assert ticks.sent == 0
    ticks.tick()
    assert ticks.sent == 1


def test_an_answered_post_holds_nothing_up() -> None:
    answers = PostAcks()
    assert answers.seconds_to_wait() == 0
    first, second = answers.posted(), answers.posted()
    answers.answered(first)
    assert answers.seconds_to_wait() > 0
    answers.answered(second)
    answers.answered(first)  # an older flush that came late
    assert answers.seconds_to_wait() == 0


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv._engine.mailbox.WAKEUP_GRACE_S", SOON)
    answers = PostAcks()
    answers.posted()
    assert 0 < answers.seconds_to_wait() <= SOON * 1.01
    time.sleep(SOON)
    assert answers.seconds_to_wait() == 0
    assert answers.seconds_to_wait() == 0  # until the next post
    answers.posted()
    assert answers.seconds_to_wait() > 0
