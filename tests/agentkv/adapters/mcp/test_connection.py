"""Tools of real MCP servers, which run in processes of their own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest

import agentkv as kv
from agentkv.adapters.mcp import Connection, ServerLost, ServerToolError, connect
from tests.agentkv.adapters.conftest import INSTRUCTIONS, TWO_CALLS, TWO_RESULTS
from tests.waiting import PATIENCE, SOON, listens, until, until_sync

pytestmark = pytest.mark.anyio

DESK = [sys.executable, str(Path(__file__).with_name("desk_server.py"))]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def address() -> Iterator[str]:
    """Of a server of streamable HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*DESK, "http", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_sync(lambda: listens(port))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def bare(schema: Any) -> list[str]:
    """A server of one tool with this schema."""
    tools = [{"name": "now", "description": "The time.", "inputSchema": schema}]
    return [sys.executable, str(Path(__file__).with_name("bare_server.py")), json.dumps(tools)]


async def tool(connection: Connection, name: str) -> kv.Tool[object, ..., object]:
    return next(tool for tool in await connection.tools() if tool.name == name)


async def test_an_agent_calls_a_servers_tools() -> None:
    async with (
        connect(DESK) as desk,
        kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx,
    ):
        weather = await tool(desk, "weather")
        agent = kv.Agent(INSTRUCTIONS, tools=[weather])
        run = await agent.run(await agent.trunk(ctx), TWO_CALLS)
        assert [call.result for call in run.calls] == TWO_RESULTS
        assert all(str(told["sky"]) in run.output for told in TWO_RESULTS)


async def test_all_of_them_are_a_toolset(address: str) -> None:
    async with (
        connect(address) as desk,
        kv.testing.replies([kv.testing.call("meet"), kv.testing.call("fail", why="no"), "Done."], capacity=4096) as ctx,
    ):
        begun = anyio.Event()

        async def meet() -> None:
            begun.set()
            await (await tool(desk, "meet"))()

        agent = kv.Agent(INSTRUCTIONS, toolsets=[desk])
        async with anyio.create_task_group() as group:
            group.start_soon(meet)
            run = await agent.run(await ctx.branch(INSTRUCTIONS), "Meet.")
        met, failed = run.calls
        assert met.result == {"result": "met"}
        assert failed.status == "failed"
        assert "no" in failed.content
        assert run.output == "Done."


async def test_lists_change_between_turns() -> None:
    async with connect(DESK, prefix="desk_") as desk:
        before = [each.name for each in await desk.tools()]
        await (await tool(desk, "desk_grow"))()
        after = [each.name for each in await desk.tools()]
        assert after == [*before, "desk_shout_loud"]
        assert await (await tool(desk, "desk_shout_loud"))(text="hey") == {"result": "HEY"}


async def test_what_is_no_text_is_named() -> None:
    async with connect(DESK) as desk:
        told = await (await tool(desk, "picture"))()
        assert told == "a cat\n[image, image/png: not shown, only text is supported]"


async def test_a_server_that_dies_fails_the_call_and_comes_back() -> None:
    async with connect(DESK) as desk:
        die, weather = await tool(desk, "die"), await tool(desk, "weather")
        with anyio.fail_after(PATIENCE):
            with pytest.raises(ServerLost, match="went away"):
                await die()
            assert await weather(city="Tolvik") == TWO_RESULTS[0]
            with pytest.raises(ServerLost):
                await die()
            assert len(await desk.tools()) > 5
            with pytest.raises(ServerToolError, match="gone"):
                await desk._tool(mcp_types.Tool(name="gone", input_schema={"type": "object"}), "gone")()


async def test_a_call_that_is_cancelled_or_late_is_cancelled_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    async with connect(DESK, env={"DESK_MARKER": str(marker)}, timeout=PATIENCE) as desk:
        hang = await tool(desk, "hang")
        async with anyio.create_task_group() as group:
            group.start_soon(hang)
            await until(marker.with_suffix(".begun").exists)
            group.cancel_scope.cancel()
        await until(marker.exists)
        assert await (await tool(desk, "weather"))(city="Tolvik") == TWO_RESULTS[0]


async def test_calls_have_a_time(tmp_path: Path) -> None:
    async with (
        connect(DESK, env={"DESK_MARKER": str(tmp_path / "marker")}) as desk,
        kv.testing.replies([kv.testing.call("hang"), "Too slow."], capacity=4096) as ctx,
    ):
        slow = await tool(desk, "hang")
        agent = kv.Agent(INSTRUCTIONS, tools=[replace(slow, timeout=SOON)])
        run = await agent.run(await ctx.branch(INSTRUCTIONS), "Hang.")
        assert run.calls[0].status == "timeout"
        assert run.output == "Too slow."


async def test_a_server_that_hangs_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sure to answer nothing more, so it is waited for as briefly as can be, and for others long."""
    marker, hanging = tmp_path / "marker", set[object]()
    timeout = property(lambda desk: SOON if desk._session in hanging else PATIENCE, lambda desk, seconds: None)
    monkeypatch.setattr(Connection, "_timeout", timeout, raising=False)
    async with connect(DESK, env={"DESK_MARKER": str(marker)}) as desk:
        for _ in range(2):
            freeze = await tool(desk, "freeze")
            async with anyio.create_task_group() as group:
                group.start_soon(freeze)
                await until(marker.with_suffix(".frozen").exists)
                group.cancel_scope.cancel()
            marker.with_suffix(".frozen").unlink()
            hanging.add(desk._session)
            assert await (await tool(desk, "weather"))(city="Tolvik") == TWO_RESULTS[0]
            assert desk._session not in hanging


async def test_what_does_not_come_up_says_so() -> None:
    with anyio.fail_after(PATIENCE):
        with pytest.raises(ServerLost, match="no-such-command"):
            async with connect("no-such-command --now"):
                pass
        with pytest.raises(ServerLost, match=f"within {SOON} s"):
            async with connect([*DESK, "mute"], timeout=SOON):
                pass
        with pytest.raises(ServerLost):
            async with connect("http://127.0.0.1:9/mcp", timeout=PATIENCE):
                pass
        with pytest.raises(ServerLost):
            async with connect([sys.executable, "-c", "print('hello')"], timeout=PATIENCE):
                pass
        for server in ([], "", 5, ["a", 5], "ftp://x", "a 'b", None, b"http://x"):
            with pytest.raises(kv.InvalidInput, match="must be a command, or an http or https URL"):
                async with connect(server):  # type: ignore[arg-type]
                    pass


async def test_what_does_not_come_up_is_named_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, open_process = [], anyio.open_process

    async def counted(*command: Any, **options: Any) -> Any:
        tries.append(command)
        return await open_process(*command, **options)

    monkeypatch.setattr(anyio, "open_process", counted)
    with pytest.raises(ServerLost, match=rf"sys.stdin.read.* within {SOON} s"):
        async with connect([sys.executable, "-c", "import sys; sys.stdin.read()"], timeout=SOON):
            pass
    assert len(tries) == 1


async def test_an_address_without_a_server_hints_at_the_usual_one(address: str) -> None:
    with pytest.raises(ServerLost, match=r"/none does not come up: there is nothing .* end in /mcp"):
        async with connect(address.replace("/mcp", "/none")):
            pass


LEFT_ALONE = [
    {"type": "object"},
    {"type": "object", "properties": {"x": {"$ref": "#/properties/x"}}},
    {"type": "object", "properties": {"x": {"type": "string"}}, "uniqueItems": True, "not": {}},
]


@pytest.mark.parametrize("schema", LEFT_ALONE, ids=["bare", "circular", "not"])
async def test_a_schema_that_no_grammar_holds_fails_no_turn(schema: dict[str, Any]) -> None:
    async with (
        connect(bare(schema)) as server,
        kv.Context.open(kv.models.nano(), capacity=1024, threads=1) as ctx,
    ):
        assert repr(server).startswith(f"<Connection to {sys.executable} ")
        agent = kv.Agent(INSTRUCTIONS, toolsets=[server])
        assert "Nano" in (await agent.run(await agent.trunk(ctx), "Who are you?")).output


@pytest.mark.parametrize("schema", [5, {"type": "array"}, {"type": "object", "properties": 5}], ids=str)
async def test_a_list_of_tools_that_is_none_is_said(schema: Any) -> None:
    with pytest.raises(ServerLost, match=r"does not list its tools: .*inputSchema"):
        async with connect(bare(schema)):
            pass


async def test_names_that_come_out_alike_are_told_apart() -> None:
    long = "x" * 80
    names = ["a b", "a_b", f"{long}1", f"{long}2", "", "twice", "twice"]
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    async with connect([*bare({})[:-1], json.dumps(listed)]) as server:
        told = [tool.name for tool in await server.tools()]
    assert told == ["a_b", "a_b_2", long[:64], f"{long[:62]}_2", "twice"]


async def test_errors_of_the_block_come_out_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError):
        async with connect(DESK):
            raise ZeroDivisionError
