"""Suppression of the output of an export's libraries, for the command line."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_libraries"]


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppresses warnings, log lines below errors, and transformers' progress bars in the block.

    torchao reports every optional extension that this machine lacks, and torch its own deprecations; users can act on
    neither.
    """
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    _show_progress_bars(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        _show_progress_bars(True)


def _show_progress_bars(shown: bool) -> None:
    try:
        from transformers.utils import logging as transformers_logging
    except ImportError:  # the export itself says what is missing
        return
    if shown:
        transformers_logging.enable_progress_bar()
    else:
        transformers_logging.disable_progress_bar()
