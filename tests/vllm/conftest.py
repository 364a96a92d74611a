"""Nano behind a real vLLM: `make test-vllm`, which says which Python has it. Elsewhere nothing here is collected."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import pytest

import agentkv as kv

from .server import VLLMServer

PYTHON = os.environ.get("AGENTKV_VLLM_PYTHON")
collect_ignore_glob = [] if PYTHON else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file that is named to pytest is collected all the same."""
    for item in items if PYTHON is None else ():
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason="`make test-vllm` runs it"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    assert PYTHON is not None
    server = VLLMServer(PYTHON, tmp_path_factory.mktemp("vllm") / "log", threads=2)
    yield server
    server.kill()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def ctx(server: VLLMServer) -> AsyncIterator[kv.Context]:
    async with kv.Context.connect(server.url) as ctx:
        yield ctx


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - another process does it
            await anyio.sleep(0.1)
