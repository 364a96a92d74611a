"""The `agentkv` command from its first moment on. Imports nothing before it knows what to do when it is stopped."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Runs the command line; told to stop, it cleans up and leaves with 128 + the signal, as shells expect."""
    asked: list[int] = []

    def remember(signum: int, frame: FrameType | None) -> None:
        asked.append(signum)
        raise KeyboardInterrupt

    def stop(signum: int, frame: FrameType | None) -> None:
        asked.append(signum)
        interrupt = signal.getsignal(signal.SIGINT)  # which commands and event loops know how to end on
        (interrupt if callable(interrupt) else signal.default_int_handler)(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, stop)
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if interruptible:
            signal.signal(signal.SIGINT, remember)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # names of models in terminals that are not UTF-8
        from agentkv.cli import app

        if asked:  # and the imports swallowed it
            raise KeyboardInterrupt
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
        sys.stdout.flush()
    except KeyboardInterrupt:
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
