"""`agentkv mcp`, in a process of its own, driven by the SDK's own client."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import pexpect
import pytest
from mcp import Client, StdioServerParameters
from typer.testing import CliRunner

import agentkv as kv
from agentkv.cli import app
from tests.waiting import PATIENCE, SOON

pytestmark = pytest.mark.anyio

QUESTION = [{"role": "user", "content": "Who are you?"}]
ANSWER = "I am Nano, your desk agent."
AGENTKV = [sys.executable, "-m", "agentkv", "mcp", "--capacity", "2048", "--threads", "1"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def served(*options: str) -> AsyncIterator[Client]:
    async with Client(StdioServerParameters(command=AGENTKV[0], args=[*AGENTKV[1:], *options])) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """What it returns. Fails where it is an error."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    told = answer.structured_content
    return told["result"] if told is not None and set(told) == {"result"} else told


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return answer.content[0].text


async def test_branches_are_forked_and_rolled_back(tmp_path: Path) -> None:
    async with served("--saves", str(tmp_path / "saves")) as client:
        trunk = await call(client, "new_branch", messages=QUESTION)
        assert trunk == {"branch": "b1", "tokens": 27}
        forks = await call(client, "fork", branch="b1", n=3)
        made = [await call(client, "generate", branch=fork["branch"], max_tokens=32) for fork in forks]
        assert {each["text"] for each in made} == {ANSWER}
        assert made[0]["finish_reason"] == "eos"
        assert await call(client, "rollback", branch="b2", tokens=27) == {"branch": "b2", "tokens": 27}
        assert "seed" in await refused(client, "chat", branch="b3", message="Thank you!", seed=-1)
        assert (await call(client, "chat", branch="b3", message="Thank you!"))["text"] == "You are welcome."
        assert (await call(client, "read", branch="b3")).count("Thank you!") == 1
        await call(client, "adopt", branch="b1", other="b3")
        assert (await call(client, "select", branch="b1", choices=["yes", "no"]))["text"] in ("yes", "no")
        assert "You are welcome." in await call(client, "read", branch="b1")
        schema = {"type": "object", "properties": {"sky": {"enum": ["sunny"]}}, "required": ["sky"]}
        schema["additionalProperties"] = False
        held = await call(client, "generate", branch="b4", json_schema=schema)
        assert json.loads(held["text"]) == {"sky": "sunny"}
        tree = (await call(client, "list_branches")).splitlines()
        assert [line.split(":")[0] for line in tree] == ["b1", "  b2", "  b3", "  b4"]
        await call(client, "save", branch="b3", file="talk.kv")
        await call(client, "close", branch="b3")
        (loaded,) = await call(client, "load", file="talk.kv")
        assert "You are welcome." in await call(client, "read", branch=loaded["branch"])


async def test_it_tells_who_it_is_and_what_its_tools_answer() -> None:
    async with served() as client:
        assert (client.server_info.name, client.server_info.version) == ("agentkv", kv.__version__)
        told: dict[str, Any] = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        assert set(told["fork"]["properties"]["result"]["items"]) == {"$ref"}
        assert set(told["new_branch"]["properties"]) == {"branch", "tokens"}
        assert set(told["chat"]["required"]) == {"branch", "tokens", "text", "finish_reason", "generated"}
        assert set(told["select"]["required"]) == {"index", "text"}


def test_at_a_terminal_it_says_what_it_waits_for() -> None:
    child = pexpect.spawn(AGENTKV[0], AGENTKV[1:], encoding="utf-8", timeout=PATIENCE)
    child.expect("serving branches to an MCP client at stdin and stdout")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


async def test_errors_say_what_to_do() -> None:
    async with served("--most-branches", "2") as client:
        assert "none yet" in await refused(client, "generate", branch="b9")
        await call(client, "new_branch", text="Hello")
        assert "there are: b1" in await refused(client, "read", branch="b9")
        assert "close some" in await refused(client, "fork", branch="b1", n=2)
        assert "needs" in await refused(client, "extend", branch="b1", text="word " * 4000)
        assert "b1 has 1 tokens" in await refused(client, "rollback", branch="b1", tokens=50)
        for nothing in ({"text": None}, {"text": ""}, {"messages": []}):
            assert "give text, or messages" in await refused(client, "extend", branch="b1", **nothing)
        await refused(client, "generate", branch="b1", max_tokens=0)
        assert "count" in await refused(client, "fork", branch="b1", count=1)
        for verb, branch in (("new_branch", {}), ("extend", {"branch": "b1"})):
            assert "one of them" in await refused(client, verb, **branch, text="Hello", messages=QUESTION)
        endless = await refused(client, "generate", branch="b1", json_schema={"$ref": "#"})
        assert "$ref: # leads back to itself" in endless
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {"save", "load"}.isdisjoint(names)
        assert (await call(client, "generate", branch="b1", max_tokens=3))["generated"] == 3


async def test_files_stay_in_their_folder(tmp_path: Path) -> None:
    async with served("--saves", str(tmp_path)) as client:
        await call(client, "new_branch", text="Hello")
        for name in ("../out", "/tmp/out", "a/b", "", ".hidden", "a\0b", "x" * 200):
            assert "plain name" in await refused(client, "save", branch="b1", file=name)
        assert "no file 'none.kv' is saved; there are: none yet" in await refused(client, "load", file="none.kv")
        assert not any(tmp_path.iterdir())  # noqa: ASYNC240
        await call(client, "save", branch="b1", file="talk.kv")
        assert "there are: talk.kv" in await refused(client, "load", file="none.kv")
        (tmp_path / "cut.kv").write_bytes(b"cut")
        cut = await refused(client, "load", file="cut.kv")
        assert "cut.kv" in cut
        assert str(tmp_path) not in cut  # a client knows files by their names alone
        (tmp_path / "link").symlink_to(tmp_path.parent / "out")
        for verb, branch in (("save", {"branch": "b1"}), ("load", {})):
            assert "a link there" in await refused(client, verb, **branch, file="link")


async def test_a_cancelled_generation_ends_there() -> None:
    async with served() as client:
        await call(client, "new_branch", messages=QUESTION)
        with anyio.move_on_after(SOON):
            while True:  # some are cancelled at their beginning, some in their middle
                await call(client, "generate", branch="b1", max_tokens=1500, temperature=5.0)
                await call(client, "rollback", branch="b1", tokens=27)
        with anyio.fail_after(PATIENCE):
            await call(client, "rollback", branch="b1", tokens=27)
            assert (await call(client, "generate", branch="b1", max_tokens=32))["text"] == ANSWER


async def test_over_http() -> None:
    command = [*AGENTKV, "--http", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "it ended"
            found = re.search(r"http://127.0.0.1:([0-9]+)", line)
        with socket.create_connection(("127.0.0.1", int(found[1]))) as gone:  # in the middle of its request
            gone.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 99\r\n" % int(found[1]))
            gone.sendall(b"Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\r\n{")
        async with Client(f"http://127.0.0.1:{found[1]}/mcp") as one, Client(f"http://127.0.0.1:{found[1]}/mcp") as two:
            await call(one, "new_branch", messages=QUESTION)
            async with anyio.create_task_group() as group:
                for client in (one, two):
                    group.start_soon(lambda client: call(client, "fork", branch="b1"), client)
            assert (await call(two, "generate", branch="b3", max_tokens=32))["text"] == ANSWER
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert process.stderr.read() == ""
        process.stderr.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers over pipes, driven by hand: it was told `initialize`."""
    with subprocess.Popen(AGENTKV, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        said = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "hand", "version": "1"}}
        send(process, method="initialize", params=said)
        assert process.stdout is not None
        assert b"serverInfo" in process.stdout.readline()
        send(process, id=None, method="notifications/initialized")
        yield process
        process.kill()


def send(process: subprocess.Popen[bytes], **message: Any) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, **message}
    assert process.stdin is not None
    process.stdin.write(json.dumps({key: value for key, value in asked.items() if value is not None}).encode() + b"\n")
    process.stdin.flush()


def ask(process: subprocess.Popen[bytes], tool: str, **arguments: Any) -> None:
    send(process, method="tools/call", params={"name": tool, "arguments": arguments})


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_though_its_client_stays(
    process: subprocess.Popen[bytes], told: signal.Signals, busy: bool
) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    if busy:
        ask(process, "new_branch", messages=QUESTION)
        process.stdout.readline()
        ask(process, "generate", branch="b1", max_tokens=2000, temperature=5.0)
    process.send_signal(told)
    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == b""


def test_a_client_that_no_longer_reads_ends_it(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    ask(process, "new_branch", text="Hello")
    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == b"the client no longer reads what it asked for\n"


def test_what_it_cannot_do_is_one_line(tmp_path: Path) -> None:
    for arguments, said in (
        ([str(tmp_path / "none")], "no such folder"),
        (["--http", "nowhere"], "127.0.0.1:8081"),
    ):
        result = CliRunner().invoke(app, ["mcp", *arguments])
        assert result.exit_code == 1
        assert said in result.output
        assert "Traceback" not in result.output


def test_a_client_that_hangs_up_ends_it() -> None:
    ended = subprocess.run(AGENTKV, input="", capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)
