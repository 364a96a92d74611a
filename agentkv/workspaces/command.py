"""Running a command in a folder: with a limit of time, of output and of what it is told of its surroundings."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process

from .._types.errors import WorkspaceError

MOST_OUTPUT = 64 * 1024  # bytes that are kept: the beginning and the end
_KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "VIRTUAL_ENV",
)
_DRAIN_S = 0.2  # for output that is still on its way once the command has ended


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command.

    Attributes:
        status: its exit status; the negative number of the signal that ended it.
        output: what it wrote, errors included, in order.
        timed_out: whether it was killed because it took too long.
    """

    status: int
    output: str
    timed_out: bool


async def run_command(folder: Path, command: str, seconds: float, ceiling: Path) -> CommandResult:
    """Runs a command of the shell in a folder. It is killed, with the processes of its group, when it takes too long,
    when the wait is cancelled, and what it leaves running is killed once it has ended.

    That is no sandbox: it may do what this user may. `ceiling`: a folder above which git does not look for a
    repository.

    Raises WorkspaceError where it cannot be started.
    """
    try:
        with anyio.CancelScope(shield=True):  # one that nobody has a handle of could not be killed as a whole
            process = await anyio.open_process(
                ["/bin/sh", "-c", command],
                cwd=folder,
                env=environment(os.environ, ceiling),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise WorkspaceError(f"the command cannot be started: {error}") from error
    output, timed_out = _Output(), False
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(output.collect, process)
            with anyio.move_on_after(seconds) as limit:
                await process.wait()
            timed_out = limit.cancelled_caught
            _kill(process)
            with anyio.CancelScope(shield=True):
                await process.wait()
            with anyio.move_on_after(_DRAIN_S):  # one that left the group may keep the pipe open for ever
                await output.ended.wait()
            group.cancel_scope.cancel()
    finally:
        _kill(process)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    assert process.returncode is not None
    return CommandResult(process.returncode, output.text(), timed_out)


def environment(given: Mapping[str, str], ceiling: Path) -> dict[str, str]:
    """Variables that a command gets: none that may hold a key."""
    kept = {name: given[name] for name in _KEPT_VARIABLES if name in given}
    return {**kept, "GIT_CEILING_DIRECTORIES": str(ceiling), "GIT_TERMINAL_PROMPT": "0", "PAGER": "cat", "TERM": "dumb"}


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class _Output:
    """The beginning and the end of what a process writes."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self._begin = bytearray()
        self._end = bytearray()
        self._left_out = 0

    async def collect(self, process: Process) -> None:
        """Reads until the end of the output."""
        assert process.stdout is not None
        try:
            async for chunk in process.stdout:
                self._add(chunk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        self.ended.set()

    def _add(self, chunk: bytes) -> None:
        half = MOST_OUTPUT // 2
        room = half - len(self._begin)
        self._begin += chunk[:room]
        self._end += chunk[room:]
        if (over := len(self._end) - half) > 0:
            self._left_out += over
            del self._end[:over]

    def text(self) -> str:
        """What was kept, with a mark where something was left out."""
        begin, end = (part.decode("utf-8", "replace") for part in (self._begin, self._end))
        return f"{begin}\n... [{self._left_out} bytes left out] ...\n{end}" if self._left_out else begin + end
