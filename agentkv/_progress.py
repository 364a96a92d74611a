"""What a terminal shows while a model is downloaded or exported. Elsewhere nothing of it is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ._console import escaped, remembered_interrupts, reporting, stderr

if TYPE_CHECKING:
    from collections.abc import Callable

_DOWNLOAD = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())


class Display:
    """One line that changes: first a download, then the steps of an export. From any thread."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called at every change; what it raises ends what is shown."""
        self._check = check
        self._words = TextColumn("{task.description}", markup=False)
        # What the program prints meanwhile goes where it would go otherwise.
        quiet: Any = {"console": stderr, "transient": True, "redirect_stdout": False, "redirect_stderr": False}
        self._download = Progress(self._words, *_DOWNLOAD, **quiet)
        steps = (SpinnerColumn(), self._words, TimeElapsedColumn())
        self._steps = Progress(*steps, **quiet)

    def received(self, done: int, total: int) -> None:
        """So many bytes are here."""
        self._check()
        self._show(self._download, "downloading")
        self._download.update(self._download.task_ids[0], completed=done, total=total)

    def tell(self, what: str) -> None:
        """This begins now."""
        self._check()
        self._download.stop()
        self._show(self._steps, what)
        self._steps.update(self._steps.task_ids[0], description=what)

    def note(self, line: str) -> None:
        """A line that stays, also where nothing else is shown."""
        self._check()
        stderr.print(escaped(line), soft_wrap=True)

    def stop(self) -> None:
        """Leaves the terminal as it was. Idempotent."""
        self._download.stop()
        self._steps.stop()

    def _show(self, progress: Progress, what: str) -> None:
        if not progress.task_ids:
            progress.add_task(what, total=None)
            progress.start()


@contextmanager
def displayed(stopped: str) -> Iterator[Display]:
    """The display of a command, which ends where it cannot go on, saying `stopped` when it was told to."""
    try:
        with reporting(), remembered_interrupts() as check_interrupts:
            display = Display(check_interrupts)
            try:
                yield display
            finally:
                display.stop()
    except KeyboardInterrupt:
        stderr.print(stopped)
        raise typer.Exit(130) from None
