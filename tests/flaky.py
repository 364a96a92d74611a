"""Runs the suite again and again beside other work, in other orders, on less of a machine: a table of what failed.

make flaky N=20; each run takes the next condition. One condition and some tests:
make flaky N=5 FLAKY='--only "slow calls" -- tests/agentkv/aio'
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from tests.run import pytest_command, run

LIMIT_S = 3600.0
SLOW_CALLS = Path(__file__).with_name("slow_calls")


def _spin() -> None:
    while True:
        pass


def _write() -> None:
    with tempfile.NamedTemporaryFile() as file:
        while True:
            file.seek(0)
            file.write(os.urandom(1 << 22))
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def beside(work: Callable[[], None], count: int) -> Iterator[None]:
    """Processes that work until the block is left."""
    processes = [multiprocessing.Process(target=work, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


class Condition(NamedTuple):
    """One way to be run: other work, words before the command, and arguments of pytest."""

    work: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    prefix: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


CONDITIONS = {
    "idle": Condition(),
    "four busy processes": Condition(lambda: beside(_spin, 4)),
    "one core": Condition(prefix=("taskset", "-c", "0")),
    "random order": Condition(arguments=("-p", "random_order", "--random-order")),
    "nice, beside two busy processes": Condition(lambda: beside(_spin, 2), prefix=("nice", "-n", "19")),
    "a busy disk": Condition(lambda: beside(_write, 4)),
    "looking seldom": Condition(prefix=("env", "AGENTKV_TESTS_POLL=0.5")),
    "slow calls": Condition(prefix=("env", f"PYTHONPATH={SLOW_CALLS}")),
}
_NAMES = ", ".join(f'"{name}"' for name in CONDITIONS)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make flaky",
        description=f"{__doc__}\nConditions: {_NAMES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", "--runs", type=int, default=20, help="N of make (%(default)s)")
    parser.add_argument("-w", "--workers", type=int, default=os.cpu_count() or 1, help="cores (%(default)s)")
    parser.add_argument("--only", metavar="CONDITION", help="one in place of all in turn")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, behind --")
    options = parser.parse_args()
    if options.only not in (None, *CONDITIONS):
        parser.error(f"there is no condition {options.only!r}; there are: {_NAMES}")
    if options.runs < 1:
        parser.error(f"N is {options.runs}, but it must be at least 1")
    if options.workers < 1:
        parser.error(f"--workers is {options.workers}, but it must be at least 1")
    for name in options.pytest:  # pytest's own workers say nothing of it
        if not name.startswith("-") and "/" in name and not Path(name.partition("::")[0]).exists():
            parser.error(f"there is no {name}; behind -- come files of tests and options of pytest")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what works beside ends, too
    failures: dict[str, list[str]] = collections.defaultdict(list)
    names = itertools.cycle([options.only] if options.only else CONDITIONS)
    for number, name in zip(range(1, options.runs + 1), names, strict=False):
        print(f"==> Run {number} of {options.runs}: {name}", flush=True)
        begun = time.monotonic()
        failed = once(CONDITIONS[name], options.workers, [*options.pytest, f"--random-order-seed={number}"])
        for test in failed:
            failures[test].append(name)
        print(f"==> {len(failed)} failed in {time.monotonic() - begun:.0f} s", flush=True)
    print(f"\n{len(failures)} tests failed in {options.runs} runs")
    for test, where in sorted(failures.items(), key=lambda item: -len(item[1])):
        print(f"{len(where):4}  {test}: {', '.join(where)}")
    return bool(failures)


def once(condition: Condition, workers: int, arguments: list[str]) -> list[str]:
    """Names of the tests that failed; a run that ended otherwise fails by itself."""
    with tempfile.TemporaryDirectory() as folder, condition.work():
        report = Path(folder) / "report.xml"
        command = pytest_command(workers, [*condition.arguments, *arguments, f"--junitxml={report}"])
        status = run([*condition.prefix, *command], LIMIT_S)
        failed = list(_failed(report)) if report.exists() else []
    return failed or (["the run itself"] if status else [])


def _failed(report: Path) -> Iterator[str]:
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            yield f"{case.get('classname')}::{case.get('name')}"


if __name__ == "__main__":
    sys.exit(main())
