"""Runs the Python tests as `make test` does: says how long it will take, and ends within LIMIT_S whatever happens."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.limits import family, stacks

ROOT = Path(__file__).resolve().parents[1]
TIMES = ROOT / "build" / "times"
LIMIT_S = 55 * 60  # what a machine busy with four other processes needs, twice
USUAL = "10 to 25 minutes on two idle cores, by the machine"
SLOWEST = 10
# More than cores: a fifth of the tests' time goes by on servers, terminals and processes, and beside other work more
# workers get a larger share.
FURTHER_WORKERS = 2
WORKER_BYTES = 5 << 29  # that one comes to hold, with its children: torch keeps something of each export
GRACE_S = 60.0  # to sum up in


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds (%(default)s)")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, behind --")
    options = parser.parse_args()
    whole = not options.pytest
    print(f"==> Running the Python tests on {options.workers} cores: {expected() if whole else 'a part'}", flush=True)
    begun = time.monotonic()
    record = ["-p", "tests.times", "--times", str(TIMES)] if whole else []
    status = run(pytest_command(options.workers, [*options.pytest, *record]), options.limit)
    if whole and status == 0:
        (TIMES / "last").write_text(f"{time.monotonic() - begun:.0f}")
    return status


def pytest_command(workers: int, arguments: list[str]) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes(workers)), "--dist", "loadfile"]
    return [*command, f"--durations={SLOWEST}", "--durations-min=1", *arguments]


def processes(cores: int) -> int:
    """How many share the tests: as many as there is memory for, and not many more than cores."""
    return max(1, min(cores + FURTHER_WORKERS, psutil.virtual_memory().available // WORKER_BYTES))


def expected() -> str:
    """How long the whole will take, by the last run of it here."""
    try:
        minutes, seconds = divmod(int((TIMES / "last").read_text()), 60)
    except (OSError, ValueError):
        return USUAL
    return f"the last run took {minutes}:{seconds:02}"


def run(command: list[str], limit: float) -> int:
    """The exit status of pytest; past the limit, 1: the stacks of everything that runs are shown, and it is ended."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else some 400 processes compile every module anew
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        print(f"\n==> Not done after {limit:g} seconds; what runs now:", flush=True)
        for each in family(process.pid):
            print(stacks(each), flush=True)
        process.send_signal(signal.SIGINT)  # it sums up what has failed so far
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        return 1
    except KeyboardInterrupt:
        return process.wait(GRACE_S)  # it has got the same signal and says what it did
    finally:
        for each in reversed(list(family(process.pid))) if process.poll() is None else ():
            each.kill()


if __name__ == "__main__":
    sys.exit(main())
