"""Logging: structured events on the standard logger "agentkv", silent unless the application gives it a handler."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, cast

import structlog

_standard = logging.getLogger("agentkv")
_standard.addHandler(logging.NullHandler())
_keys = structlog.processors.KeyValueRenderer(key_order=["event"])


def _rendered(_logger: object, _name: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """What the standard logger is called with; tracebacks are its affair."""
    raised = event.pop("exc_info", None)
    return (str(_keys(_logger, _name, event)),), {"exc_info": raised}


log = cast(
    structlog.stdlib.BoundLogger,
    structlog.wrap_logger(
        _standard,
        processors=[structlog.stdlib.filter_by_level, _rendered],
        wrapper_class=structlog.stdlib.BoundLogger,
    ),
)
