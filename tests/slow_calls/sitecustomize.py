"""Delays of calls to the system, at random, so that what seldom comes between two of them often does.

Python imports this file at its start, in every process whose PYTHONPATH has this folder: `make flaky`.
"""

from __future__ import annotations

import os
import random
import sys
import time

SLOW = {
    *("os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"),
    *("os.symlink", "os.truncate", "os.utime", "shutil.move", "shutil.rmtree"),
    *("fcntl.flock", "fcntl.lockf", "os.fork", "os.kill", "os.killpg", "signal.pthread_kill", "sqlite3.connect"),
    *("socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen"),
}
"""Audited events (https://docs.python.org/3/library/audit_events.html) that another process or thread may see."""
SHARE = 0.3
LONGEST_S = 0.03
OF_THE_TIME = 0.2  # the most of it that is slept through: who makes thousands of calls shall end, too
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | getattr(os, "O_DIRECTORY", 0)


class Delays:
    """The auditing hook of a process: sleeps before some calls."""

    def __init__(self) -> None:
        self._random = random.Random()
        self._slept = 0.0
        self._looked = time.monotonic()

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        """Hears of a call before it is made."""
        changes = event in SLOW or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES)
        if changes and self._random.random() < SHARE:
            now = time.monotonic()
            self._slept = max(0.0, self._slept - OF_THE_TIME * (now - self._looked))
            self._looked = now
            if self._slept < 1.0:
                seconds = self._random.uniform(0, LONGEST_S)
                self._slept += seconds
                time.sleep(seconds)


sys.addaudithook(Delays())
sys.setswitchinterval(1e-4)  # threads change places fifty times as often
