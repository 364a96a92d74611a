"""Logging: structured events on the standard logger "agentkv", silent unless the application gives it a handler."""

from __future__ import annotations

import functools
import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

_standard = logging.getLogger("agentkv")
_standard.addHandler(logging.NullHandler())


class _Log:
    """Events with their values. Imports structlog at the first event that a handler may receive."""

    def debug(self, event: str, **values: object) -> None:
        self._say(logging.DEBUG, event, values)

    def info(self, event: str, **values: object) -> None:
        self._say(logging.INFO, event, values)

    def warning(self, event: str, **values: object) -> None:
        self._say(logging.WARNING, event, values)

    def error(self, event: str, **values: object) -> None:
        self._say(logging.ERROR, event, values)

    def _say(self, level: int, event: str, values: dict[str, object]) -> None:
        if _standard.isEnabledFor(level):
            _structured().log(level, event, **values)


@functools.cache
def _structured() -> BoundLogger:
    import structlog

    keys = structlog.processors.KeyValueRenderer(key_order=["event"])

    def rendered(logger: object, name: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
        """Arguments for the standard logger, which formats tracebacks itself."""
        raised = event.pop("exc_info", None)
        return (str(keys(logger, name, event)),), {"exc_info": raised}

    return cast(
        "BoundLogger",
        structlog.wrap_logger(_standard, processors=[rendered], wrapper_class=structlog.stdlib.BoundLogger),
    )


log = _Log()
