"""A scripted model behind a server, and clients as processes: `make test-clients`, which says where they are
installed. Elsewhere nothing here is collected."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

import agentkv as kv
from agentkv.serve import Settings
from agentkv.testing import Reply
from tests.agentkv.serve.conftest import Served, serving_of
from tests.export_cache import ExportCache

from .model import POSITIONS, export_long_model

INSTALLED = os.environ.get("AGENTKV_CLIENTS")
collect_ignore_glob = [] if INSTALLED else ["test_*.py"]
KEY = "a-key-of-ours"

Serving = Callable[[Callable[[str], Reply]], AbstractAsyncContextManager[Served]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file that is named to pytest is collected all the same."""
    for item in items if INSTALLED is None else ():
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason="`make test-clients` runs it"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def long_model(export_cache: ExportCache) -> Path:
    return export_cache.get("long-model-of-clients", export_long_model)


@pytest.fixture
def serving(long_model: Path) -> Serving:
    """`async with serving(reply) as served`: `reply` gets the prompt and says what the model says."""

    @asynccontextmanager
    async def begun(reply: Callable[[str], Reply]) -> AsyncIterator[Served]:
        async with (
            kv.testing.replies(reply, long_model, capacity=POSITIONS, threads=1) as ctx,
            serving_of(ctx, Settings(names=("desk",), api_key=KEY)) as served,
        ):
            yield served

    return begun


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home, and in it the folder that the client works in."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "note.txt").write_text("The password is tulip-42.\n")
    return tmp_path
