"""Whatever a server says, and whatever it is asked: errors of the SDK, and a branch that goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import agentkv as kv
from agentkv.client import RemoteBranch, ServerError, connect

from ..remote.faulty_proxy import FaultyProxy, answers, until_event
from ..serve.conftest import Served

pytestmark = pytest.mark.anyio

PROMPT = [5, 6, 7]


async def read(branch: RemoteBranch) -> None:
    async with branch.stream(max_tokens=5) as tokens:
        async for _ in tokens:
            pass


ODD = {
    "a page": (b"<html>", "Invalid JSON"),
    "a list": (b"[]", "oddly"),
    "nothing in it": (b"{}", "id: Field required"),
    "null": (b"null", "oddly"),
    "no UTF-8": (b'{"id": "\xff"}', "oddly"),
    "deep": (b"[" * 200_000, "oddly"),
    "a path for an id": (b'{"id": "../../metrics", "number": "x"}', "oddly"),
}


@pytest.mark.parametrize("name", ODD)
async def test_odd_answers_are_errors_of_the_server(proxy: FaultyProxy, name: str) -> None:
    body, says = ODD[name]
    async with connect(proxy.url) as remote:
        branch = await remote.branch(PROMPT)
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda: remote.branch(PROMPT),
            branch.fork,
            branch.generate,
            lambda: branch.extend([8]),
            lambda: branch.select(["yes"]),
        ]
        for verb in verbs:
            proxy.faults.append(answers("200 OK", body))
            with pytest.raises(ServerError, match=says):
                await verb()
        assert branch.tokens == PROMPT
        await branch.extend([8])


@pytest.mark.parametrize("body", [b'{"error": "a"}', b'{"error": ["a"]}', b'{"error": {}}', b"[" * 200_000, b"\xff"])
async def test_odd_errors_are_errors_of_the_server(proxy: FaultyProxy, body: bytes) -> None:
    async with connect(proxy.url) as remote:
        branch = await remote.branch(PROMPT)
        for verb in (branch.generate, lambda: read(branch)):
            proxy.faults.append(answers("500 Internal Server Error", body))
            with pytest.raises(ServerError) as failed:
                await verb()
            assert failed.value.status == 500


async def test_a_server_that_stops_is_none_of_the_connections_own_errors(proxy: FaultyProxy) -> None:
    async with connect(proxy.url) as remote:
        branch = await remote.branch(PROMPT)
        stops = b'{"error": {"message": "the server is stopping", "code": "stopping"}}'
        proxy.faults.append(answers("503 Service Unavailable", stops))
        with pytest.raises(ServerError, match="stopping") as failed:
            await branch.generate()
        assert failed.value.status == 503


BEGIN = b'event: begin\ndata: {"length": 3}\n\n'
EVENTS = {
    "no events": (b"", "in the middle"),
    "a page": (b"<html>", "in the middle"),
    "no beginning": (b'event: token\ndata: {"id": 1, "text": "", "logprob": 0, "index": 0}\n\n', "no beginning"),
    "no JSON": (b"event: begin\ndata: {\n\n", "oddly"),
    "a beginning and no more": (BEGIN, "in the middle"),
    "two beginnings": (BEGIN + BEGIN, "begins twice"),
    "a token without an id": (BEGIN + b"event: token\ndata: {}\n\n", "id: Field required"),
    "an error of another shape": (BEGIN + b'data: {"error": []}\n\n', "reports an error"),
    "an error": (BEGIN + b'data: {"error": {"message": "it failed"}}\n\n', "it failed"),
    "half an event": (BEGIN + b"event: token\ndata: {", "in the middle"),
}


@pytest.mark.parametrize("name", EVENTS)
async def test_odd_streams_are_errors_of_the_server(proxy: FaultyProxy, name: str) -> None:
    events, says = EVENTS[name]
    async with connect(proxy.url) as remote:
        branch = await remote.branch(PROMPT)
        proxy.faults.append(answers("200 OK", events, "content-type: text/event-stream"))
        with pytest.raises(ServerError, match=says):
            await read(branch)
        await read(branch)


async def test_a_stream_that_is_cut_off_is_an_error(proxy: FaultyProxy) -> None:
    async with connect(proxy.url) as remote:
        branch = await remote.branch(PROMPT)
        proxy.faults.append(until_event(b"event: generation"))
        with pytest.raises(ServerError):
            await read(branch)


async def test_urls_and_keys_that_cannot_be_are_refused(served: Served) -> None:
    bad: Any
    for bad in ("", "nonsense", "ftp://x", "http://127.0.0.1:99999", "http://me:secret@127.0.0.1", None):
        with pytest.raises(kv.InvalidInput, match="url"):
            async with connect(bad):
                pass
    for bad in ("s€cret", "se\ncret", "", 5):
        with pytest.raises(kv.InvalidInput, match="api_key"):
            async with connect(served.url, bad):
                pass


async def test_arguments_that_cannot_go_to_a_server_are_refused(served: Served) -> None:
    async with connect(served.url) as remote:
        branch = await remote.branch(PROMPT)
        given: Any = object()
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda: remote.branch("x", template={"x": given}),
            lambda: remote.branch("\ud800"),
            lambda: branch.extend("x", template={"x": float("nan")}),
            lambda: branch.select(given),
            lambda: branch.select([given]),
            lambda: branch.generate(sampling=given),
            lambda: branch.generate(stop=given),
            lambda: branch.generate(max_tokens=given),
        ]
        for verb in verbs:
            with pytest.raises(kv.InvalidInput):
                await verb()
        with pytest.raises(kv.InvalidInput):
            async with branch.stream(max_tokens=given):
                pass
        assert branch.tokens == PROMPT
