"""The `agentkv` command from its first moment on. Imports nothing before it knows what to do when it is stopped."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["main"]

GRACE_S = 0.5  # for threads that are about to end


def main() -> None:
    """Runs the command line, and leaves: without waiting for threads that do not return, such as those of tools."""
    try:
        _run()
    except SystemExit as end:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is leaving already
        if not _threads_end():
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        signal.signal(signal.SIGINT, interrupt)
        raise


def _command_line() -> Callable[[], object]:
    try:
        from agentkv_runtime.importing import few_collections

        with few_collections():
            from agentkv.cli import app
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed: pip install agentkv-sdk")
    return app


def _threads_end() -> bool:
    """Do those end that Python waits for? Others than hanging ones are about to."""
    deadline = time.monotonic() + GRACE_S
    lasting = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    for thread in lasting:
        thread.join(max(deadline - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in lasting)


def _run() -> None:
    """Told to stop, it cleans up and leaves with 128 + the signal, as shells expect."""
    asked: list[int] = []

    def remember(signum: int, frame: FrameType | None) -> None:
        asked.append(signum)
        raise KeyboardInterrupt

    def stop(signum: int, frame: FrameType | None) -> None:
        asked.append(signum)
        interrupt = signal.getsignal(signal.SIGINT)  # which commands and event loops know how to end on
        (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, stop)
    hung_up = getattr(signal, "SIGHUP", None)  # its terminal is closed; no signal of Windows
    if hung_up is not None and signal.getsignal(hung_up) != signal.SIG_IGN:  # it does not run under nohup
        signal.signal(hung_up, stop)
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if interruptible:
            signal.signal(signal.SIGINT, remember)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # names of models in terminals that are not UTF-8
        app = _command_line()
        if asked:  # and the imports swallowed it
            raise KeyboardInterrupt
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
        sys.stdout.flush()
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print("stopped", file=sys.stderr)
        sys.exit(128 + (asked or [signal.SIGINT])[0])
    except OSError as error:  # what it prints to is full, or gone
        with contextlib.suppress(OSError):
            print(f"error: {error.strerror or error}", file=sys.stderr)
        os._exit(1)  # Python would try to flush again
    except SystemExit:
        if asked:
            sys.exit(128 + asked[0])
        raise
