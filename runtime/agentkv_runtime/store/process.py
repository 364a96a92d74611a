"""Exports in a process of its own: `python -m agentkv_runtime.store.process REQUEST`.

The parent then needs no torch in its memory, and can stop an export at once. REQUEST is a JSON object of `source` (a
path) and `options` (fields of `Options`). The output is lines of JSON: `{"progress": words}`, `{"done": share}` and
`{"note": sentence}` any number of times, then `{"path": model folder}` or `{"error": message}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import IO, Any

from agentkv_runtime.errors import ExportError, StoreError
from agentkv_runtime.folder.printable import path_text
from agentkv_runtime.store.entries import Options
from agentkv_runtime.store.making import export_once

__all__ = ["main"]

_TOLD = (signal.SIGTERM, signal.SIGINT)
_HUNG_UP = getattr(signal, "SIGHUP", None)  # its terminal is closed; no signal of Windows

_told_to_stop: list[int] = []
"""The signal that asked the process to stop; empty before."""


def main() -> int:
    """Runs the requested export; returns the exit status."""
    try:
        _hear_signals()
        lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what anybody else prints is none of them
        return _export(json.loads(sys.argv[1]), lines)
    except BrokenPipeError:  # nobody waits for it any more
        return 1
    except KeyboardInterrupt:
        return 130


def _hear_signals() -> None:
    for told in _TOLD:
        signal.signal(told, _stop)
    if _HUNG_UP is not None and signal.getsignal(_HUNG_UP) != signal.SIG_IGN:  # it is ignored under nohup
        signal.signal(_HUNG_UP, _stop)


def _export(request: dict[str, Any], lines: IO[str]) -> int:
    source = Path(request["source"])
    try:
        entry = export_once(
            source,
            path_text(source.resolve()),
            Options.model_validate(request["options"]),
            progress=lambda what: _go_on(lines, "progress", what),
            done=lambda share: _go_on(lines, "done", share),
            note=lambda what: _say(lines, "note", what),
        )
        _say(lines, "path", str(entry.path))
    except (ExportError, StoreError) as error:
        _say(lines, "error", str(error))
        return 1
    return 0


def _go_on(lines: IO[str], kind: str, what: str | float) -> None:
    if _told_to_stop:  # and a library took the interrupt for an error of its own
        raise KeyboardInterrupt
    _say(lines, kind, what)


def _say(lines: IO[str], kind: str, what: str | float) -> None:
    print(json.dumps({kind: what}), file=lines, flush=True)


def _stop(signum: int, frame: FrameType | None) -> None:
    for told in _TOLD:
        signal.signal(told, signal.SIG_IGN)  # once is enough: the second would meet the cleaning up
    _told_to_stop.append(signum)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
