"""Logging: structured events on the standard logger "agentkv", silent unless the application gives it a handler."""

from __future__ import annotations

import logging
from typing import cast

import structlog

_standard = logging.getLogger("agentkv")
_standard.addHandler(logging.NullHandler())

log = cast(
    structlog.stdlib.BoundLogger,
    structlog.wrap_logger(
        _standard,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    ),
)
