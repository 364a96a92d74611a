"""No test hangs: a pytest plugin under which each has a limit, its fixtures and subprocesses included.

At the limit (`timeout` in pyproject.toml) the test fails with the stacks of every thread of the worker and of its
descendants, those are killed, and the run goes on. One that is at work gets the limit again, a few times: a busy
machine is no hang. A test that even then does not end, in native code that neither
returns nor lets go of the interpreter, ends its worker, in whose place another goes on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

AT_WORK = 0.03  # of the limit, in seconds of the processor: what hangs takes less, a core shared by thirty gives more
MOST_LIMITS = 5  # for what turns in a circle
GRACE_S = 30.0  # to fail in, before the worker is ended
_NAMES_OF_STACKS_S = 10.0  # per process, to read its stacks in

_stderr: list[int] = []  # the terminal's, whatever a test captures


def pytest_configure(config: pytest.Config) -> None:
    _stderr.append(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2))


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(_stderr.pop())


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Stands in for pytest-timeout's, which knows nothing of children."""

    limits, worked = 0, sum(os.times()[:4])  # that of children is looked up at the limit only: it takes milliseconds

    def arm() -> None:
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        faulthandler.dump_traceback_later(settings.timeout + GRACE_S, exit=True, file=_stderr[-1])

    def at_the_limit(*_: object) -> None:
        __tracebackhide__ = True
        nonlocal limits, worked
        limits, before, worked = limits + 1, worked, processor_seconds()
        if worked - before > AT_WORK * settings.timeout and limits < MOST_LIMITS:
            return arm()
        report = "\n".join(stacks(process) for process in family())
        end_children()
        pytest.fail(f"longer than {limits * settings.timeout:g} seconds\n{report}")

    signal.signal(signal.SIGALRM, at_the_limit)
    arm()
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """After every test, whether a limit was set for it or not."""
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return True


def family(pid: int | None = None) -> Iterator[psutil.Process]:
    """A process, this one unless told otherwise, and all its descendants."""
    process = psutil.Process(pid)
    yield process
    yield from process.children(recursive=True)


def processor_seconds() -> float:
    """Seconds of the processor that this process and its descendants have taken."""
    total = 0.0
    for process in family():
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # of its own and of children that have ended
    return total


def stacks(process: psutil.Process) -> str:
    """The command of a process, and the stack of each of its threads where it is a Python."""
    try:
        title = f"{process.pid} {' '.join(process.cmdline())[:200]}"
        tool = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or "py-spy"
        ended = subprocess.run(
            [tool, "dump", "--pid", str(process.pid)], capture_output=True, text=True, timeout=_NAMES_OF_STACKS_S
        )
        return f"--- {title}\n{ended.stdout or ended.stderr}"
    except (psutil.Error, OSError, subprocess.SubprocessError) as error:
        return f"--- {process.pid}: no stacks: {error}"


def end_children() -> None:
    """Kills all descendants of this process, whatever session they are in."""
    children = list(family())[1:]
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(children, timeout=5)
