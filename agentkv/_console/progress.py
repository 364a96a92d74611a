"""Terminal display of a model's download or export; off a terminal only `note` writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from .console import escaped, remembered_interrupts, reporting, stderr

if TYPE_CHECKING:
    from collections.abc import Callable

_DOWNLOAD = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())


class _Words(ProgressColumn):
    """The current step, truncated to the column."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class _Remaining(ProgressColumn):
    """Estimated time left once the done share is known, else the time elapsed."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        ends = task.fields.get("ends")
        if ends is None:
            return Text(str(timedelta(seconds=round(task.elapsed or 0.0))), style="progress.elapsed")
        seconds = round(ends - task.get_time())
        words = f"about {timedelta(seconds=seconds)} left" if seconds > 0 else "longer than it seemed"
        return Text(words, style="progress.remaining")


class Display:
    """One line that changes: first a download, then the steps of an export. Usable from any thread."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called at every change; an exception from it ends the display."""
        self._check = check
        # What the program prints meanwhile goes where it would go otherwise.
        quiet: Any = {"console": stderr, "transient": True, "redirect_stdout": False, "redirect_stderr": False}
        self._download = Progress(_Words(), *_DOWNLOAD, **quiet)
        steps = (SpinnerColumn(), _Words(), BarColumn(bar_width=16), _Remaining(Column(no_wrap=True)))
        self._steps = Progress(*steps, **quiet)

    def received(self, done: int, total: int) -> None:
        """Shows the download at `done` of `total` bytes."""
        self._check()
        self._show(self._download, "downloading")
        self._download.update(self._download.task_ids[0], completed=done, total=total)

    def tell(self, what: str) -> None:
        """Shows the beginning of step `what`; ends the download."""
        self._check()
        _stop(self._download)
        self._show(self._steps, what)
        self._steps.update(self._steps.task_ids[0], description=what)

    def done(self, share: float) -> None:
        """Shows the share of the time of all steps that has passed, 0 to 1."""
        self._check()
        self._show(self._steps, "")
        task = self._steps.tasks[0]
        over = task.elapsed or 0.0
        ends = task.get_time() + over * (1 - share) / share if share else None
        self._steps.update(task.id, total=1.0, completed=share, ends=ends)

    def note(self, line: str) -> None:
        """Prints a line that stays, terminal or not."""
        self._check()
        stderr.print(escaped(line), soft_wrap=True)

    def stop(self) -> None:
        """Restores the terminal. Idempotent."""
        _stop(self._download)
        _stop(self._steps)

    def _show(self, progress: Progress, what: str) -> None:
        if not progress.task_ids:
            progress.add_task(what, total=None)
            if stderr.is_interactive:
                progress.start()


def _stop(progress: Progress) -> None:
    if progress.live.is_started:  # stopped without, it writes an empty line
        progress.stop()


@contextmanager
def displayed(stopped: str) -> Iterator[Display]:
    """Yields the display of a command. Errors end it as in `reporting`; an interrupt prints `stopped` and exits with
    130."""
    try:
        with reporting(), remembered_interrupts() as check_interrupts:
            display = Display(check_interrupts)
            try:
                yield display
            except Exception:
                check_interrupts()  # a library may make another error of one
                raise
            finally:
                display.stop()
    except KeyboardInterrupt:
        stderr.print(stopped)
        raise typer.Exit(130) from None
