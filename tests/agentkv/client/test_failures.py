"""Servers that say nothing, or that are given up in the middle: nothing is left there, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.lowlevel import checkpoint

import agentkv as kv
from agentkv.client import Connection, RemoteBranch, ServerError, _settling, connect
from tests.faults import fail_at

from ..remote.faulty_proxy import Exchange, Fault, FaultyProxy, answers, hangs
from ..serve.conftest import Served, serving

pytestmark = pytest.mark.anyio

Verb = Callable[[RemoteBranch], Awaitable[Any]]
ENDLESS: Any = {"max_tokens": 7000, "output": kv.Regex("[a-z ]{7000}")}
PROMPT = [5, 6, 7]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, a server that answers has the time for it."""
    monkeypatch.setattr(_settling, "LAST_SECONDS", 60.0)


async def streams(branch: RemoteBranch) -> None:
    async with branch.stream(max_tokens=5) as tokens:
        async for _ in tokens:
            pass


async def made(branch: RemoteBranch) -> None:
    await branch.generate(max_tokens=5)


async def leaves(branch: RemoteBranch) -> None:
    async with branch:
        pass


class HeldBack:
    """A fault: what the server says comes once it is `let_go`, if the client still listens. It is `there` at `mark`."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self.there, self.let_go = asyncio.Event(), asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        parts = urlsplit(exchange.server)
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        back.write(exchange.head)

        async def forward() -> None:
            while data := await exchange.reader.read(65536):  # the body may come behind the head
                back.write(data)
            back.close()  # as the client did
            self.let_go.set()

        forwarding, told = asyncio.create_task(forward()), b""
        while self._mark not in told:
            told += await there.read(65536)
        self.there.set()
        await self.let_go.wait()
        exchange.writer.write(told)
        await exchange.writer.drain()
        forwarding.cancel()
        back.close()


async def begins(exchange: Exchange) -> None:
    """A stream of which nothing comes but that."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    exchange.writer.write(head + b'event: begin\ndata: {"length": 3}\n\n')
    await hangs(exchange)


@pytest.mark.parametrize(
    ("verb", "fault"),
    [
        (lambda branch: branch.generate(), hangs),
        (lambda branch: branch.fork(), hangs),
        (streams, hangs),
        (streams, begins),
        (leaves, hangs),
    ],
)
async def test_what_a_silent_server_is_asked_can_be_given_up(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, verb: Verb, fault: Fault
) -> None:
    monkeypatch.setattr(_settling, "LAST_SECONDS", 0.1)

    async def work() -> None:
        async with connect(proxy.url) as remote:
            branch = await remote.branch(PROMPT)
            proxy.faults.extend([fault] + [hangs] * 9)
            with anyio.move_on_after(0.1):
                await verb(branch)

    task = asyncio.create_task(work())
    done, _ = await asyncio.wait({task}, timeout=60)
    task.cancel()
    assert done
    await task


async def test_a_close_that_fails_is_told_again_and_fails_no_other_verb(served: Served, proxy: FaultyProxy) -> None:
    async with connect(proxy.url) as remote:
        branch, other = await remote.branch(PROMPT), await remote.branch(PROMPT)
        proxy.faults.append(answers("503 Service Unavailable", b'{"error": {"message": "not now"}}'))
        branch.close()
        await other.extend([8])
        assert other.tokens == [*PROMPT, 8]
        assert len(served.ctx.branches) == 2
        await other.extend([9])
        assert len(served.ctx.branches) == 1


async def test_a_close_raises_its_own_failure_and_a_block_none(served: Served, proxy: FaultyProxy) -> None:
    async with connect(proxy.url) as remote:
        branch, other, third = [await remote.branch(PROMPT) for _ in range(3)]
        refuses = answers("500 Internal Server Error", b'{"error": {"message": "it failed"}}')
        proxy.faults.append(refuses)
        with pytest.raises(ServerError, match="it failed"):
            await branch.close()
        await other.close()
        proxy.faults.append(refuses)
        async with third:
            pass
        await branch.close()  # again
    await served.until(lambda: not served.ctx.branches)


async def test_a_close_whose_telling_is_cancelled_is_told_when_the_connection_ends(
    served: Served, proxy: FaultyProxy
) -> None:
    async with connect(proxy.url) as remote:
        branch, other = await remote.branch(PROMPT), await remote.branch(PROMPT)
        branch.close()
        proxy.faults.append(hangs)
        with anyio.move_on_after(0.1):
            await other.extend([8])
    await served.until(lambda: not served.ctx.branches)


@pytest.mark.parametrize("forks", [False, True])
async def test_branches_whose_making_is_cancelled_are_closed(served: Served, proxy: FaultyProxy, forks: bool) -> None:
    async with connect(proxy.url) as remote:
        trunk = await remote.branch(PROMPT)
        held_back = HeldBack(b"messages")
        proxy.faults.append(held_back)
        made = asyncio.ensure_future(trunk.fork(3) if forks else remote.branch(PROMPT))
        await held_back.there.wait()
        assert len(served.ctx.branches) > 1
        made.cancel()
        held_back.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await made
        await trunk.extend([8])  # which tells of those that were closed
        assert len(served.ctx.branches) == 1


async def test_a_stream_that_is_cancelled_as_it_begins_leaves_the_branch_as_it_was(
    served: Served, proxy: FaultyProxy
) -> None:
    held_back = HeldBack(b"event: token")
    async with connect(proxy.url) as remote:
        branch = await remote.branch(PROMPT)
        proxy.faults.append(held_back)
        entering = asyncio.ensure_future(branch.stream(**ENDLESS).__aenter__())
        await held_back.there.wait()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        await branch.extend([8])
        assert branch.tokens == [*PROMPT, 8] == served.ctx.branches[0].tokens


@pytest.mark.parametrize("streams", [False, True])
async def test_who_is_refused_a_busy_branch_ends_nothing_of_it(served: Served, streams: bool) -> None:
    async with connect(served.url) as remote, anyio.create_task_group() as group:
        branch = await remote.branch(PROMPT)
        if streams:
            async with branch.stream(max_tokens=300, sampling=kv.Sampling(logit_bias={2: -100})) as tokens:
                await anext(tokens)
                await refused(branch)
                assert len([token async for token in tokens if token.id >= 0]) == 299
        else:
            group.start_soon(lambda: branch.generate(**ENDLESS))
            await checkpoint()
            await refused(branch)
            group.cancel_scope.cancel()


async def refused(branch: RemoteBranch) -> None:
    with pytest.raises(kv.BranchBusy):
        await branch.generate(max_tokens=2)
    with pytest.raises(kv.BranchBusy):
        async with branch.stream(max_tokens=2):
            pass


async def test_a_branch_that_is_closed_in_its_stream_has_what_was_read(served: Served) -> None:
    async with connect(served.url) as remote:
        branch = await remote.branch(PROMPT)
        async with branch.stream(max_tokens=300, sampling=kv.Sampling(logit_bias={2: -100})) as tokens:
            read = [(await anext(tokens)).id for _ in range(3)]
            branch.close()
        assert (tokens.generation.tokens, tokens.generation.finish_reason) == (read, "cancelled")


async def test_a_stream_whose_reader_was_cancelled_says_so(proxy: FaultyProxy) -> None:
    async with connect(proxy.url) as remote:
        branch = await remote.branch(PROMPT)
        proxy.faults.append(begins)
        async with branch.stream() as tokens:
            with anyio.move_on_after(0.1):
                await anext(tokens)
            with pytest.raises(kv.AgentKVError, match="was cancelled"):
                await anext(tokens)
        assert tokens.generation.finish_reason == "cancelled"
        assert branch.tokens == PROMPT


async def left_early(context: kv.Context | Connection, **how: Any) -> kv.Generation:
    branch: Any = await context.branch([{"role": "user", "content": "Who are you?"}])
    async with branch.stream(**how) as tokens:
        for _ in range(2):
            await anext(tokens)
    generation: kv.Generation = tokens.generation
    return generation


@pytest.mark.parametrize("how", [{"max_tokens": 20}, {"max_tokens": 2}, {"max_tokens": 2, "top_logprobs": 2}])
async def test_streams_that_are_left_say_the_same_as_in_this_process(served: Served, how: Any) -> None:
    async with connect(served.url) as remote:
        assert await left_early(remote, **how) == await left_early(served.ctx, **how)


@pytest.mark.parametrize("turns", [1, 3, 9, 27])
async def test_a_stream_that_is_cancelled_twice_as_it_begins_leaves_the_branch_free(served: Served, turns: int) -> None:
    async with connect(served.url) as remote:
        branch = await remote.branch(PROMPT)
        for more in (1, 2, 5):
            task = asyncio.create_task(streams(branch))
            for count in (turns, more):
                for _ in range(count):
                    await checkpoint()
                task.cancel()
            await asyncio.wait({task})
            await branch.extend([8])
            await branch.generate(max_tokens=1)


@pytest.mark.usefixtures("failing_caches")
async def test_what_came_before_a_failure_is_told() -> None:
    async with serving() as served, connect(served.url) as remote:
        for verb in (made, streams):
            branch = await remote.branch([{"role": "user", "content": "Who are you?"}])
            before = len(branch)
            await fail_at(served.ctx, 1, after=2)
            with pytest.raises(kv.StepFailed):
                await verb(branch)
            held = len(branch)
            assert held > before
            await branch.extend([5])
            assert len(branch) == held + 1
        branch = await remote.branch([{"role": "user", "content": "Who are you?"}])
        await fail_at(served.ctx, 1, after=2)
        stream = branch.stream(max_tokens=20)

        async def read() -> None:
            async with stream:
                async for _ in stream:
                    pass

        with pytest.raises(kv.StepFailed):
            await read()
        with pytest.raises(kv.StepFailed):
            _ = stream.generation
