"""Fixtures of the SDK's tests: a tiny real model, under both event loops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv


def loop_threads() -> list[threading.Thread]:
    """Threads of step loops that run."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("agentkv-")]


OpenContext = Callable[..., AbstractAsyncContextManager[kv.Context]]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def folder(tiny_exported_folder: Callable[..., Path]) -> Path:
    return tiny_exported_folder("llama")


@pytest.fixture
def open_context(folder: Path) -> OpenContext:
    """`kv.Context.open` of the tiny model, small."""

    def open_context(capacity: int = 2048, **options: Any) -> AbstractAsyncContextManager[kv.Context]:
        return kv.Context.open(folder, capacity=capacity, kv_dtype="fp32", threads=1, **options)

    return open_context
