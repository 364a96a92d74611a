"""Prompts that take long: the head at once, signs of life while they are read, and nothing lost where a client leaves.

`PROTOCOLS` is a table: a row is a path that streams, what it is asked, and what it says before and while a prompt is
read. Steps of the engine are let through one by one, so that nothing here depends on how long they take.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import anyio
import httpx
import pytest

from agentkv.serve import prompts
from agentkv.serve.http import responses
from tests.waiting import until

from .conftest import SETTINGS, Served, serving

pytestmark = pytest.mark.anyio
CHUNK = 64  # tokens of one step
LONG = " ".join(f"Ticket {number} is open." for number in range(60))
SAID = [{"role": "user", "content": LONG}]
PING = ": ping"


class Protocol(NamedTuple):
    """One that streams: how it is asked, what comes first, how it pings, and how it says that it failed."""

    path: str
    body: dict[str, Any]
    first: str
    ping: str = PING
    failed: str = '"error"'


PROTOCOLS = [
    Protocol("/v1/chat/completions", {"messages": SAID, "max_tokens": 4}, '"role":"assistant"'),
    Protocol("/v1/completions", {"prompt": LONG, "max_tokens": 4}, ""),
    Protocol("/v1/completions", {"prompt": LONG, "max_tokens": 4, "echo": True}, "Ticket 59 is open."),
    Protocol(
        "/v1/responses",
        {"input": LONG, "max_output_tokens": 4},
        "response.created",
        "event: response.in_progress",  # a comment is nothing to Codex, which hangs up after 300 s without an event
        "response.failed",
    ),
    Protocol("/v1/messages", {"messages": SAID, "max_tokens": 4}, "message_start", "event: ping", "event: error"),
    Protocol("/v1/tokens", {"tokens": [*range(30, 330)], "max_tokens": 4}, ""),
]


class Steps:
    """The engine's steps, each of which waits for leave."""

    def __init__(self, served: Served) -> None:
        self._worker = served.ctx._core.loop._worker
        self._leave = threading.Semaphore(0)
        self._free = False
        self.waiting = False

    def _step(self) -> Any:
        if not self._free:
            self.waiting = True
            self._leave.acquire()
            self.waiting = False
        return type(self._worker).step(self._worker)

    async def let(self, count: int) -> None:
        """So many go on, and are over when this returns."""
        await self.until_one_waits()
        for _ in range(count):
            self.waiting = False
            self._leave.release()
            await self.until_one_waits()

    async def until_one_waits(self) -> None:
        """Returns once there is one to do."""
        await until(lambda: self.waiting)

    def let_all(self) -> None:
        """All go on from now on."""
        self._free = True
        self._leave.release()


@contextmanager
def held_back(served: Served) -> Iterator[Steps]:
    """No step is done in this block without leave."""
    steps = Steps(served)
    steps._worker.step = steps._step  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        steps.let_all()
        del steps._worker.step


@asynccontextmanager
async def serving_slowly(**settings: Any) -> AsyncIterator[Served]:
    """nano, whose steps have few rows."""
    async with serving(replace(SETTINGS, **settings), max_batch_tokens=CHUNK) as served:
        yield served


def asked(protocol: Protocol) -> dict[str, Any]:
    return protocol.body | ({} if protocol.path == "/v1/tokens" else {"model": "nano", "stream": True})


async def until_left(served: Served) -> None:
    """Until the server knows that a client hung up while a step is held back."""
    await until(lambda: bool(served.ctx._core.loop._commands))


def cached_of(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda row: row.path)
async def test_the_head_and_pings_come_before_the_prompt_is_read(
    protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "PING_SECONDS", 0.01)
    async with serving_slowly() as served:
        with held_back(served) as steps:
            async with served.http.stream("POST", protocol.path, json=asked(protocol)) as response:
                assert response.status_code == 200
                lines = response.aiter_lines()
                before: list[str] = []
                while sum(line == protocol.ping for line in before) < 3:
                    before.append(await anext(lines))
                assert served.ctx.stats.tokens == 0  # nothing of it is read yet
                assert protocol.first in "\n".join(before)
                steps.let_all()
                after = [line async for line in lines if line]
        assert served.ctx.stats.generated > 0
        assert not any(protocol.failed in line for line in after)


async def test_nothing_pings_while_something_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        bodies.append(message.get("body", b""))

    emit, silences = responses.Events(send, [], b": ping\n\n"), iter([False, False, True, False, True, True])

    async def sleep(seconds: float) -> None:
        if not next(silences):
            await emit("{}")

    monkeypatch.setattr(responses, "anyio", SimpleNamespace(sleep=sleep))
    with pytest.raises(RuntimeError):  # no silence is left
        await emit.ping()
    said, ping = b"data: {}\n\n", b": ping\n\n"
    assert bodies == [b"", said, said, ping, said, ping, ping]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda row: row.path)
async def test_what_fails_while_the_prompt_is_read_is_an_event(protocol: Protocol) -> None:
    async with serving_slowly() as served:
        with held_back(served) as steps:
            async with served.http.stream("POST", protocol.path, json=asked(protocol)) as response:
                assert response.status_code == 200
                await steps.until_one_waits()
                async with anyio.create_task_group() as group:
                    group.start_soon(served.server.admission.drain, 0)
                    await until_left(served)
                    steps.let_all()
                told = "\n".join([line async for line in response.aiter_lines()])
        assert protocol.failed in told
        assert "the server is stopping" in told
        assert not served.ctx.branches


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("turns", [1, 3], ids=["new", "goes on"])
async def test_what_was_read_is_kept_for_a_client_that_comes_again(turns: int, stream: bool) -> None:
    async with serving_slowly() as served:
        messages: list[Any] = []
        if turns > 1:
            messages = [{"role": "user", "content": "Who are you?"}]
            first = await served.openai.chat.completions.create(model="nano", messages=messages, max_tokens=4)
            messages.append({"role": "assistant", "content": first.choices[0].message.content})
        body = {"model": "nano", "messages": [*messages, *SAID], "max_tokens": 4}
        with held_back(served) as steps:
            async with httpx.AsyncClient(base_url=served.url) as client, anyio.create_task_group() as group:
                group.start_soon(lambda: client.post("/v1/chat/completions", json=body | {"stream": stream}))
                await steps.let(5)
                group.cancel_scope.cancel()
            await until_left(served)
            steps.let_all()
            await served.until_idle()
        assert len(served.ctx.branches) == (turns > 1)  # the conversation that waits
        before = served.ctx.stats
        answer = (await served.http.post("/v1/chat/completions", json=body)).json()
        assert cached_of(answer["usage"]) >= 5 * CHUNK
        assert served.ctx.stats.prefilled - before.prefilled <= answer["usage"]["prompt_tokens"] - 5 * CHUNK
        assert before.cells_used < CHUNK  # what is kept is free for whoever needs it


async def test_a_request_that_waits_for_its_turn_is_told_that_the_server_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses, "PING_SECONDS", 0.01)
    chat = PROTOCOLS[0]
    async with serving_slowly(most_running=1) as served:
        with held_back(served) as steps:
            async with served.http.stream("POST", chat.path, json=asked(chat)) as first:
                await steps.until_one_waits()
                async with served.http.stream("POST", chat.path, json=asked(chat)) as second:
                    assert (served.server.admission.running, served.server.admission.waiting) == (1, 1)
                    lines = second.aiter_lines()
                    assert second.status_code == 200
                    assert await anext(lines) == PING
                    steps.let_all()
                    assert [line async for line in first.aiter_lines()][-2] == "data: [DONE]"
                    assert [line async for line in lines][-2] == "data: [DONE]"


@pytest.mark.parametrize("most_running", [1, 8], ids=["in the queue", "while it is read"])
async def test_a_client_that_leaves_before_its_first_token_leaves_nothing_behind(most_running: int) -> None:
    chat = PROTOCOLS[0]
    async with serving_slowly(most_running=most_running) as served:
        with held_back(served) as steps:
            async with served.http.stream("POST", chat.path, json=asked(chat)) as first:
                await steps.until_one_waits()
                async with httpx.AsyncClient(base_url=served.url) as client, anyio.create_task_group() as group:
                    group.start_soon(lambda: client.post(chat.path, json=asked(chat)))
                    admission = served.server.admission
                    await until(lambda: admission.running + admission.waiting == 2)
                    group.cancel_scope.cancel()
                if most_running == 1:
                    await until(lambda: not admission.waiting)
                steps.let_all()
                assert [line async for line in first.aiter_lines()][-2] == "data: [DONE]"
        await served.until_idle()
        assert (served.server.admission.running, served.server.admission.waiting) == (0, 0)
        assert len(served.ctx.branches) == len(served.server.cache)


REFUSED: list[tuple[str, dict[str, Any], int]] = [
    (
        "/v1/chat/completions",
        {"messages": SAID, "tools": [{"type": "function", "function": {"name": "a", "parameters": {"properties": 1}}}]},
        400,
    ),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG * 40}]}, 400),
    ("/v1/completions", {"prompt": LONG * 40}, 400),
    ("/v1/responses", {"input": LONG * 40}, 400),
    (
        "/v1/responses",
        {"input": LONG, "text": {"format": {"type": "json_schema", "name": "a", "schema": {"required": [5]}}}},
        400,
    ),
    ("/v1/messages", {"messages": [{"role": "user", "content": LONG * 40}], "max_tokens": 4}, 400),
    ("/v1/messages", {"messages": SAID, "max_tokens": 4, "tool_choice": {"type": "any"}}, 400),
    ("/v1/tokens", {"tokens": [30] * 5000}, 400),
    ("/v1/tokens", {"tokens": [30] * 4096}, 400),
    ("/v1/tokens", {"tokens": [30] * 9, "made": 10}, 400),
]


@pytest.mark.parametrize(("path", "body", "status"), REFUSED)
async def test_what_cannot_be_asked_is_refused_by_its_status_before_anything_is_read(
    path: str, body: dict[str, Any], status: int
) -> None:
    async with serving_slowly() as served:
        more = {} if path == "/v1/tokens" else {"model": "nano", "stream": True}
        response = await served.http.post(path, json=body | more)
        assert response.status_code == status, response.text
        assert response.json()["error"]["message"]
        assert served.ctx.stats.tokens == 0
        assert not served.ctx.branches


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_progress_is_told_as_llama_cpp_does(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "PROGRESS_SECONDS", 0.001)
    body = {"model": "nano", "stream": True, "return_progress": True, "max_tokens": 2}
    body |= {"prompt": LONG} if path == "/v1/completions" else {"messages": SAID}
    async with serving_slowly() as served:
        with held_back(served) as steps:
            async with served.http.stream("POST", path, json=body) as response:
                told: list[dict[str, Any]] = []
                async for line in response.aiter_lines():
                    if "prompt_progress" not in line:
                        continue
                    chunk = json.loads(line.removeprefix("data: "))
                    assert [choice["index"] for choice in chunk["choices"]] == [0]
                    told.append(chunk["prompt_progress"])
                    if len(told) == 1:
                        await steps.let(3)
                    elif len(told) == 2:
                        steps.let_all()
        for progress in told:
            assert list(progress) == ["total", "cache", "processed", "time_ms"]
        done = [progress["processed"] for progress in told]
        total = told[0]["total"]
        assert done[0] == told[0]["cache"] == 0
        assert 0 < done[1] <= 3 * CHUNK
        assert done == sorted(done)
        assert done[-1] == total > 3 * CHUNK
        again = (await served.http.post(path, json=body | {"stream": False, "return_progress": True})).json()
        assert "prompt_progress" not in again
        assert cached_of(again["usage"]) >= total - 1


async def test_two_prompts_that_have_no_room_together_each_begin_once() -> None:
    chat = PROTOCOLS[0]
    async with serving(SETTINGS, capacity=700, max_batch_tokens=CHUNK) as served:
        told: list[list[str]] = []

        async def ask(word: str) -> None:
            body = asked(chat) | {"messages": [{"role": "user", "content": f"{word} {LONG}"}]}
            async with served.http.stream("POST", chat.path, json=body) as response:
                assert response.status_code == 200
                told.append([line async for line in response.aiter_lines()])

        with held_back(served) as steps:
            async with anyio.create_task_group() as group:
                group.start_soon(ask, "Well.")
                await steps.until_one_waits()
                group.start_soon(ask, "Now.")
                await until(
                    lambda: (
                        len(served.ctx._core.loop._commands.unfinished()) > 0 or served.server.admission.running == 2
                    )
                )
                steps.let_all()
        for lines in told:
            assert sum('"role"' in line for line in lines) == 1
            assert lines[-2] == "data: [DONE]"
