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
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | getattr(os, "O_DIRECTORY", 0)

_random = random.Random()


def delay(event: str, arguments: tuple[object, ...]) -> None:
    """Sleeps before some calls; the auditing hook of the process."""
    changes = event in SLOW or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES)
    if changes and _random.random() < SHARE:
        time.sleep(_random.uniform(0, LONGEST_S))


sys.addaudithook(delay)
sys.setswitchinterval(1e-4)  # threads change places fifty times as often
