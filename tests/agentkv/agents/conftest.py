"""Fixtures of the agents' tests: what the SDK's use, and the nano model."""

from __future__ import annotations

from tests.agentkv.conftest import anyio_backend, folder, open_context  # noqa: F401 - fixtures
