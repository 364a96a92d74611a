"""Fixtures of the tests of prefixes on disk."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def only_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Leaves out of `caplog` what loggers say that an earlier test of the process made talkative."""
    caplog.set_level(logging.WARNING)
