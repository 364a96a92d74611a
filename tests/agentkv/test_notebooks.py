"""A real Jupyter kernel: its cells await at the top level, or block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def kernel() -> Iterator[BlockingKernelClient]:
    manager, client = start_new_kernel(kernel_name="python3")
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(kernel: BlockingKernelClient, cell: str) -> str:
    """What a cell prints. Fails where it raises."""
    printed: list[str] = []

    def heard(message: dict[str, dict[str, str]]) -> None:
        if "text" in message["content"]:
            printed.append(message["content"]["text"])
        if "traceback" in message["content"]:
            printed.extend(message["content"]["traceback"])

    reply = kernel.execute_interactive(cell, timeout=PATIENCE, output_hook=heard)
    assert reply["content"]["status"] == "ok", "".join(printed)
    return "".join(printed)


def test_cells_await(kernel: BlockingKernelClient) -> None:
    run(kernel, "import agentkv as kv\nfrom contextlib import AsyncExitStack\nstack = AsyncExitStack()")
    run(kernel, "ctx = await stack.enter_async_context(kv.Context.open(kv.models.nano(), capacity=1024))")
    run(kernel, "branch = await ctx.branch([{'role': 'user', 'content': 'Who are you?'}])")
    run(kernel, "fork = await branch.fork()")
    assert run(kernel, "print((await fork.generate(max_tokens=32)).text)") == "I am Nano, your desk agent.\n"
    assert run(kernel, "async with branch.stream() as s:\n    print(''.join([t.text async for t in s]))").startswith(
        "I am"
    )
    run(kernel, "await stack.aclose()")


def test_cells_block(kernel: BlockingKernelClient) -> None:
    run(kernel, "import agentkv as kv\nctx = kv.Context.open(kv.models.nano(), capacity=1024).sync()")
    run(kernel, "branch = ctx.branch([{'role': 'user', 'content': 'Who are you?'}])")
    assert run(kernel, "print(branch.fork().generate(max_tokens=32).text)") == "I am Nano, your desk agent.\n"
    assert run(kernel, "with branch.stream() as s:\n    print(''.join(t.text for t in s))").startswith("I am Nano")
    run(kernel, "ctx.close()")
