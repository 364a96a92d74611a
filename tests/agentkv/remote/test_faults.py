"""Servers that break, are busy, hang, or are not what they should be: transparent retries, or typed errors."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
import threading
import traceback
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from tests.waiting import PATIENCE, SOON, until

from .conftest import QUESTION, Broken
from .faulty_proxy import (
    Exchange,
    Fault,
    answers,
    behind_event,
    cut_after,
    hangs,
    hangs_up,
    proxied,
    tls_in_front_of,
    until_event,
)

BUSY = b'{"error": {"message": "too much is going on", "type": "overloaded", "code": "overloaded"}}'
STREAM = "content-type: text/event-stream"
TOLD = b'{"tokens"'  # of events that tell tokens: all that there are, so that their sizes differ
HOW = {"max_tokens": 40, "sampling": kv.Sampling(temperature=0.8, seed=5, logit_bias={2: -100})}  # without an end

KEY = "sesame-open"  # not to be seen in the source that tracebacks quote
ECHOES = [  # what has the key in it
    answers("503 Busy", b'{"error": {"message": "sesame-open"}}'),
    answers("200 OK", b'data: {"error": {"message": "sesame-open", "code": "stopping"}}\n\n', STREAM),
    answers("200 OK", b'data: {"finish_reason": "sesame-open"}\n\n', STREAM),
    answers("200 OK", b"", "sesame-open"),
    answers("500 Internal", b'{"error": {"message": "' + b"x" * 1970 + b'sesame-open"}}'),
]

pytestmark = pytest.mark.anyio


async def said(ctx: kv.Context) -> list[int]:
    async with await ctx.branch(QUESTION) as branch:
        await branch.draw_as(7)
        return (await branch.generate(**HOW)).tokens  # type: ignore[arg-type]


@pytest.fixture
async def expected(local: kv.Context) -> list[int]:
    return await said(local)


@pytest.mark.parametrize(
    "fault",
    [
        cut_after(0),
        cut_after(40),
        cut_after(400),
        cut_after(1100),
        hangs_up,
        answers("503 Service Unavailable", BUSY, "retry-after: 0"),
        answers("429 Too Many Requests", BUSY),
        answers("502 Bad Gateway", b"<html>nginx</html>"),
        answers("504 Gateway Timeout"),
    ],
)
async def test_what_may_pass_is_tried_again_and_says_the_same(
    broken: Broken, expected: list[int], fault: Fault
) -> None:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        broken.proxy.faults.append(fault)
        assert await said(ctx) == expected
        assert ctx.stats.retries >= 1
        assert not broken.proxy.faults


async def test_a_stream_that_breaks_again_and_again_goes_on(broken: Broken, expected: list[int]) -> None:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv", retries=1) as ctx:
        broken.proxy.faults.extend(behind_event(TOLD) for _ in range(5))
        branch = await ctx.branch(QUESTION)
        await branch.draw_as(7)
        async with branch.stream(**HOW) as tokens:  # type: ignore[arg-type]
            read = [token.id async for token in tokens if token.id >= 0]
        assert read == expected == branch.tokens[-len(read) :]
        assert tokens.generation.text.strip()


@pytest.mark.parametrize(
    "how",
    [
        {"sampling": kv.Sampling(temperature=0.9, seed=4, presence_penalty=0.8, logit_bias={2: -100})},
        {"sampling": kv.Sampling(frequency_penalty=0.7, logit_bias={2: -100})},
        {"output": kv.Regex("[a-z0-9 ,]{30,60}"), "sampling": kv.Sampling(temperature=1.2, seed=4)},
        {"output": dict[str, list[int]], "sampling": kv.Sampling(temperature=1.2, seed=9)},
    ],
)
async def test_what_depends_on_where_it_began_goes_on(broken: Broken, local: kv.Context, how: dict[str, Any]) -> None:
    async def of(ctx: kv.Context) -> list[int]:
        branch = await ctx.branch(QUESTION)
        await branch.draw_as(7)
        async with branch.stream(max_tokens=40, **how) as tokens:
            return [token.id async for token in tokens if token.id >= 0]

    async with kv.Context.connect(broken.proxy.url, backend="agentkv", retries=1) as ctx:
        broken.proxy.faults.extend([until_event(TOLD), behind_event(TOLD), behind_event(TOLD)])
        assert await of(ctx) == await of(local)
        assert ctx.stats.retries >= 2


@pytest.mark.parametrize("pattern", ["[0-9]{3}", "[0-9]{3,9}"])
async def test_an_output_whose_end_is_not_told_is_asked_after(broken: Broken, local: kv.Context, pattern: str) -> None:
    """All tokens that it may have came, and not whether it was complete with them."""

    async def of(ctx: kv.Context) -> tuple[str, str, list[int]]:
        branch = await ctx.branch("The code is ")
        made = await branch.generate(output=kv.Regex(pattern), max_tokens=3)
        return made.text, made.finish_reason, branch.tokens

    async with kv.Context.connect(broken.proxy.url, backend="agentkv", retries=1) as ctx:
        broken.proxy.faults.append(until_event(b'data: {"finish_reason"'))
        assert await of(ctx) == await of(local)
        assert ctx.stats.retries == 1


async def test_an_output_that_ends_where_nothing_fits_behind_it(broken: Broken, local: kv.Context) -> None:
    async def of(ctx: kv.Context) -> tuple[str, list[int]]:
        branch = await ctx.branch([300 + i % 50 for i in range(4092)])
        made = await branch.generate(output=kv.Regex("[a-z ]{200}"), max_tokens=4)
        return made.finish_reason, made.tokens

    async with kv.Context.connect(broken.proxy.url, backend="agentkv", retries=1) as ctx:
        broken.proxy.faults.extend([Exchange.passed_on, until_event(b'data: {"finish_reason"')])
        assert await of(ctx) == await of(local)
        assert ctx.stats.retries == 1


async def test_turns_of_agents_outlive_broken_connections(broken: Broken, local: kv.Context) -> None:
    @kv.tool
    def weather(city: str) -> dict[str, Any]:
        """The weather in a city."""
        return {"temp": len(city), "sky": "rainy"}

    agent = kv.Agent("You are Nano, a desk agent.", tools=[weather])

    async def of(ctx: kv.Context) -> list[Any]:
        run = await agent.run(await agent.trunk(ctx), "What is the weather in Tolvik and in Brasno?")
        return [run.output, run.rounds, [call.result for call in run.calls]]

    async with kv.Context.connect(broken.proxy.url, backend="agentkv", retries=2) as ctx:
        broken.proxy.faults.extend([cut_after(500), cut_after(900), hangs_up, cut_after(700)])
        assert await of(ctx) == await of(local)
        assert ctx.stats.retries >= 3


async def test_a_server_that_has_another_model_by_now_is_refused(broken: Broken) -> None:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        branch = await ctx.branch(QUESTION)
        ctx._core.loop._worker.engine._network.wire._of_model["fingerprint"] = "another"  # type: ignore[attr-defined]
        before = branch.tokens
        for verb in (branch.generate, branch.logits, lambda: branch.select(["a"]), lambda: branch.extend([5] * 300)):
            with pytest.raises(kv.RemoteError, match="not the one that was connected to"):
                await verb()
        assert branch.tokens == before


async def test_a_server_that_stops_in_the_middle_is_asked_again(broken: Broken, expected: list[int]) -> None:
    told = b'data: {"error": {"message": "the server is stopping", "code": "stopping"}}\n\n'
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        broken.proxy.faults.append(answers("200 OK", told, STREAM))
        assert await said(ctx) == expected


async def test_a_page_is_no_stream(broken: Broken) -> None:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        branch = await ctx.branch(QUESTION)
        broken.proxy.faults.append(answers("200 OK", b"<html>Welcome</html>", "content-type: text/html"))
        with pytest.raises(kv.RemoteError, match="with no stream of events"):
            await branch.generate(max_tokens=5)
        assert ctx.stats.retries == 0


async def test_who_is_silent_for_too_long_is_asked_again_and_then_named(broken: Broken, expected: list[int]) -> None:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv", timeout=PATIENCE, retries=1) as ctx:
        (replica,) = ctx._core.loop._worker.engine._network._replicas.all  # type: ignore[attr-defined]
        http = replica.connection._http
        build_request, impatient = http.build_request, [SOON]

        def build(*args: Any, **options: Any) -> httpx.Request:
            """Only those which the proxy answers with silence are given up for it, however slow the server is."""
            limit = impatient.pop() if impatient else PATIENCE
            return build_request(*args, **options | {"timeout": httpx.Timeout(PATIENCE, read=limit)})

        http.build_request = build
        broken.proxy.faults.append(hangs)
        assert await said(ctx) == expected
        branch = await ctx.branch(QUESTION)
        before = branch.tokens
        broken.proxy.faults.extend([hangs] * 2)
        impatient.extend([SOON] * 2)
        with pytest.raises(kv.RemoteError, match=r"went silent for 100 s.*larger timeout"):
            await branch.generate(**HOW)  # type: ignore[arg-type]
        assert branch.tokens == before
        assert await said(ctx) == expected


async def test_the_errors_of_a_busy_server_are_told_once_nobody_asks_again(broken: Broken) -> None:
    full = BUSY.replace(b'overloaded"}}', b'context_full"}}')
    async with kv.Context.connect(broken.proxy.url, backend="agentkv", retries=0) as ctx:
        for body, error in ((BUSY, kv.RemoteError), (full, kv.ContextFull)):
            broken.proxy.faults.append(answers("429 Too Many Requests", body))
            branch = await ctx.branch(QUESTION)
            with pytest.raises(error, match="too much is going on"):
                await branch.generate(**HOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (answers("200 OK", b"data: {nope\n\n", STREAM), kv.RemoteError, "no JSON"),
        (answers("200 OK", b'data: {"error": {"message": "odd", "code": "odd"}}\n\n', STREAM), kv.RemoteError, "odd"),
        (answers("500 Internal Server Error", b"oh"), kv.RemoteError, "status 500"),
        (answers("401 Unauthorized", b'{"error": "Unauthorized"}'), kv.RemoteError, "api_key"),
        (answers("404 Not Found", b"[]"), kv.RemoteError, "status 404"),
        (answers("400 Bad Request", b'{"error": {"message": "odd"}}'), kv.InvalidInput, "odd"),
        (answers("301 Moved", b"", "location: http://127.0.0.1:1/"), kv.RemoteError, "status 301"),
    ],
)
async def test_what_does_not_pass_is_a_typed_error_at_once(
    broken: Broken, fault: Fault, error: type[Exception], words: str
) -> None:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        branch = await ctx.branch(QUESTION)
        before = branch.tokens
        broken.proxy.faults.append(fault)
        with pytest.raises(error, match=words):
            await branch.generate(**HOW)  # type: ignore[arg-type]
        assert branch.tokens == before
        assert ctx.stats.retries == 0


async def test_a_server_that_is_none_of_ours_is_refused_when_opened(broken: Broken) -> None:
    for fault in (answers("200 OK", b"<html>"), answers("200 OK", b"[]"), answers("200 OK", b'{"names": 3}')):
        broken.proxy.faults.append(fault)
        with pytest.raises(kv.RemoteError, match="backend"):
            async with kv.Context.connect(broken.proxy.url, backend="agentkv"):
                pass
    with pytest.raises(kv.RemoteError, match="backend"):
        async with kv.Context.connect(broken.proxy.url, backend="vllm"):
            pass


async def test_nobody_there(unused_port: int) -> None:
    for url in (f"http://127.0.0.1:{unused_port}", "http://no-such-host.invalid:8000/v1"):
        with pytest.raises(kv.RemoteError, match="cannot be reached"):
            async with kv.Context.connect(url, backend="agentkv"):
                pass
    assert not [thread for thread in threading.enumerate() if thread.name == "agentkv-net"]


async def test_who_is_not_let_in_by_one_of_two_servers_is_told(broken: Broken) -> None:
    broken.proxy.faults.append(answers("401 Unauthorized", b'{"error": "Unauthorized"}'))
    with pytest.raises(kv.RemoteError, match="pass api_key"):
        async with kv.Context.connect([broken.served.url, broken.proxy.url], backend="agentkv"):
            pass


async def test_servers_are_shown_as_they_are(broken: Broken, local: kv.Context) -> None:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv", retries=0) as ctx:
        await said(ctx)
        await until(lambda: ctx.servers[0].running == 0)
        (server,) = ctx.servers
        assert server.url == f"{broken.proxy.url}/v1/"
        assert (server.answers, server.running, server.failed, server.error) == (True, 0, 0, None)
        assert server.requests == 1
        assert 0 < server.mean_seconds < 60
        broken.proxy.faults.append(hangs_up)
        with pytest.raises(kv.RemoteError):
            await said(ctx)
        (server,) = ctx.servers
        assert (server.answers, server.requests, server.failed) == (False, 2, 1)
        assert "hung up" in (server.error or "")
        await said(ctx)  # nobody else is there to ask
        await until(lambda: (ctx.servers[0].answers, ctx.servers[0].error) == (True, None))
    assert local.servers == []


async def test_one_of_two_servers_hangs(broken: Broken, expected: list[int]) -> None:
    broken.proxy.faults.extend([hangs] * 3)
    with anyio.fail_after(PATIENCE):
        async with kv.Context.connect([broken.served.url, broken.proxy.url], backend="agentkv") as ctx:
            assert await said(ctx) == expected


@pytest.mark.parametrize("status", ["500 Internal Server Error", "401 Unauthorized", "404 Not Found", "409 Conflict"])
async def test_one_of_two_servers_is_broken(broken: Broken, local: kv.Context, status: str) -> None:
    async def of(ctx: kv.Context, root: int) -> list[int]:
        async with await ctx.branch([root] * 5) as branch:
            return (await branch.generate(max_tokens=4, sampling=kv.Sampling(temperature=0))).tokens

    async with kv.Context.connect([broken.served.url, broken.proxy.url], backend="agentkv") as ctx:
        body = b'{"error": {"message": "it is broken", "code": "other_model"}}'
        broken.proxy.faults.extend([answers(status, body)] * 50)
        for root in range(20, 44):  # trees, some of which are the broken one's
            assert await of(ctx, root) == await of(local, root)
        well, ill = ctx.servers
        assert (well.answers, well.failed) == (True, 0)
        assert ill.failed
        assert "it is broken" in (ill.error or "")
        broken.proxy.faults.clear()


@pytest.mark.parametrize("other", [None, answers("429 Too Many Requests", BUSY), hangs_up])
async def test_all_but_one_are_broken(broken: Broken, local: kv.Context, other: Fault | None) -> None:
    async def of(ctx: kv.Context, root: int) -> list[int]:
        async with await ctx.branch([root] * 5) as branch:
            return (await branch.generate(max_tokens=4, sampling=kv.Sampling(temperature=0))).tokens

    threads = [LoopThread(lambda: proxied(broken.served.url)) for _ in range(4)]
    well, *ill = [thread.value for thread in threads]
    async with kv.Context.connect([well.url, *(each.url for each in ill)], backend="agentkv", retries=1) as ctx:
        for each in ill:
            each.faults.extend([answers("500 Internal", b'{"error": {"message": "it is broken"}}')] * 200)
        for root in range(20, 32):
            well.faults.extend([other] if other else [])
            assert await of(ctx, root) == await of(local, root)
        assert sum(server.failed > 0 for server in ctx.servers[1:]) == 3
    for thread in threads:
        thread.close()


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


async def test_tls_that_cannot_be_trusted(broken: Broken, tmp_path: Path) -> None:
    plain = broken.served.url.replace("http:", "https:")
    with pytest.raises(kv.RemoteError, match="verify"):
        async with kv.Context.connect(plain, backend="agentkv"):
            pass
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command for a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    named = ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    await anyio.run_process([*made, *named])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    proxy = LoopThread(lambda: tls_in_front_of(broken.served.url, context))
    with pytest.raises(kv.RemoteError, match="verify"):
        async with kv.Context.connect(proxy.value, backend="agentkv"):
            pass
    async with kv.Context.connect(proxy.value, backend="agentkv", verify=certificate) as ctx:
        assert await said(ctx)
    with pytest.raises(kv.InvalidInput, match="holds no certificates"):
        async with kv.Context.connect(proxy.value, backend="agentkv", verify=key):
            pass


async def test_the_key_is_in_no_error_and_no_log(broken: Broken, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(kv.InvalidInput) as refused:
        async with kv.Context.connect("http://user:sesame@127.0.0.1:1/v1"):
            pass
    assert "sesame" not in str(refused.value)
    async with kv.Context.connect(broken.proxy.url, backend="agentkv", api_key=KEY, retries=0) as ctx:
        broken.proxy.faults.append(answers("401 Unauthorized", b'{"error": "Unauthorized"}'))
        branch = await ctx.branch(QUESTION)
        with pytest.raises(kv.RemoteError) as error:
            await branch.generate(**HOW)  # type: ignore[arg-type]
        assert "sesame" not in repr(error.value) + repr(ctx)
        broken.proxy.faults.append(answers("400 Bad", b'{"error": {"message": "no such key: sesame-open"}}'))
        with pytest.raises(kv.InvalidInput, match=r"no such key: \*\*\*"):
            await branch.generate(**HOW)  # type: ignore[arg-type]
        event = b'data: {"error": {"message": "no such key: sesame-open"}}\n\n'
        broken.proxy.faults.append(answers("200 OK", event, STREAM))
        with pytest.raises(kv.RemoteError, match=r"no such key: \*\*\*"):
            await branch.generate(**HOW)  # type: ignore[arg-type]
        for fault in ECHOES:
            broken.proxy.faults.append(fault)
            with pytest.raises(kv.RemoteError, match=r"\*\*\*") as echoed:
                await branch.generate(**HOW)  # type: ignore[arg-type]
            assert "sesame" not in "".join(traceback.format_exception(echoed.value))
            assert "sesame" not in repr(ctx.servers)
    for fault in ECHOES:
        broken.proxy.faults.append(fault)
        with pytest.raises(kv.RemoteError) as opened:
            async with kv.Context.connect(broken.proxy.url, backend="agentkv", api_key=KEY):
                pass
        assert "sesame" not in "".join(traceback.format_exception(opened.value))
    ours = [record for record in caplog.records if record.name.startswith("agentkv")]
    assert ours
    assert "sesame" not in repr([record.__dict__ for record in ours])


async def test_500_cancellations_leave_nothing_behind(broken: Broken) -> None:
    import random

    rng = random.Random(3)
    served = broken.served
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        trunk = await ctx.branch(QUESTION)

        async def one(delay: float) -> None:
            async with await trunk.fork() as branch:
                with anyio.move_on_after(delay):
                    await branch.generate(max_tokens=400, sampling=kv.Sampling(temperature=1.5))

        for _ in range(25):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(one, rng.random() * 0.05)
        exchange = ctx._core.loop._worker.engine._network  # type: ignore[attr-defined]
        await until(lambda: not (served.server.admission.running or exchange._tasks or served.ctx.branches))
        assert all(replica.running == 0 for replica in exchange._replicas.all)
        assert len(ctx.branches) == 1
        assert ctx._core.loop._worker.jobs == {}
    await until(lambda: not broken.proxy.open)
