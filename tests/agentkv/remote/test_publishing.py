"""Branches that stay on a server under a name: what who attaches gets, and what becomes of it when replies are lost,
others are quicker, or the server has forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from agentkv._documents.published import PublishedBranch
from tests.waiting import PATIENCE, until

from .conftest import QUESTION, Broken
from .faulty_proxy import answers, hangs_up, leaves_at_once, loses_the_answer
from .over_server import own_server

pytestmark = pytest.mark.anyio

DRAWN = kv.Sampling(temperature=1, seed=5, logit_bias={2: -100})
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
]


@pytest.fixture
async def ctx(broken: Broken) -> AsyncIterator[kv.Context]:
    async with kv.Context.connect(broken.proxy.url, backend="agentkv") as ctx:
        yield ctx
    await forgotten(broken)


@pytest.fixture
async def other(broken: Broken) -> AsyncIterator[kv.Context]:
    """Another process's, as far as the server can tell."""
    async with kv.Context.connect(broken.served.url, backend="agentkv") as ctx:
        yield ctx


async def listed(broken: Broken) -> list[str]:
    async with httpx.AsyncClient(base_url=broken.served.url) as http:
        return [each["id"] for each in (await http.get("/v1/branches")).json()["data"]]


async def forgotten(broken: Broken) -> None:
    async with httpx.AsyncClient(base_url=broken.served.url) as http:
        for name in await listed(broken):
            await http.delete(f"/v1/branches/{name}")


async def said(broken: Broken, name: str, verb: str, **body: Any) -> Any:
    async with httpx.AsyncClient(base_url=broken.served.url, timeout=PATIENCE) as http:
        answer = await http.post(f"/v1/branches/{name}/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def test_who_attaches_goes_on_as_the_branch_would_have(ctx: kv.Context, other: kv.Context) -> None:
    trunk = await ctx.branch(QUESTION, tools=TOOLS)
    trunk.mark("asked")
    await trunk.fork()  # one stream of random numbers is taken
    await trunk.generate(max_tokens=5, sampling=DRAWN)
    await trunk.publish("desk")
    there = await other.attach("desk")
    assert there.tokens == trunk.tokens
    assert there.messages == trunk.messages
    assert {name: mark.length for name, mark in there.marks.items()} == {
        name: mark.length for name, mark in trunk.marks.items()
    }
    assert there.reused == len(there)
    prefilled = other.stats.prefilled
    for branches in ((trunk, there), [await each.fork() for each in (trunk, there)]):
        mine, its = [await each.generate(max_tokens=20, sampling=DRAWN) for each in branches]
        assert (mine.tokens, mine.logprobs) == (its.tokens, its.logprobs)
    assert other.stats.prefilled - prefilled < 10  # the rest is in the server's cache
    more: Any = [{"role": "user", "content": "And in Oslo?"}]
    assert await there.extend(more) == await trunk.extend(more)  # tools and template are known
    assert there.tokens == trunk.tokens
    await there.rollback(there.marks["asked"])
    await trunk.rollback(trunk.marks["asked"])
    assert there.tokens == trunk.tokens


async def test_an_output_that_was_cut_goes_on_elsewhere(ctx: kv.Context, other: kv.Context) -> None:
    word = kv.Regex("[a-z]{12}")
    trunk = await ctx.branch(QUESTION)
    await trunk.generate(max_tokens=3, output=word)
    await trunk.publish("cut")
    there = await other.attach("cut")
    mine, its = await trunk.generate(output=word), await there.generate(output=word)
    assert (mine.tokens, mine.output) == (its.tokens, its.output)
    assert len(mine.output) == 12


async def test_other_languages_go_on_with_it(broken: Broken, ctx: kv.Context, other: kv.Context) -> None:
    trunk = await ctx.branch(QUESTION)
    await trunk.publish("desk")
    generation = (await said(broken, "desk", "generate", max_tokens=6))["generation"]
    there = await other.attach("desk")
    assert there.tokens == [*trunk.tokens, *generation["tokens"]]
    assert there.messages[-1].role == "assistant"
    assert (await trunk.generate(max_tokens=6)).tokens == generation["tokens"]
    await said(broken, "desk", "fork", names=["kid"])
    assert (await other.attach("kid")).tokens == there.tokens


async def test_the_sync_face(broken: Broken) -> None:
    def work() -> None:
        with kv.Context.connect(broken.served.url, backend="agentkv").sync() as ctx:
            trunk = ctx.branch(QUESTION)
            trunk.publish("plain")
            assert ctx.attach("plain").tokens == trunk.tokens

    await anyio.to_thread.run_sync(work)
    await forgotten(broken)


async def test_an_empty_branch(ctx: kv.Context, other: kv.Context) -> None:
    await (await ctx.branch()).publish("empty")
    there = await other.attach("empty")
    assert there.tokens == []
    await there.extend(QUESTION)


async def test_what_is_published_is_a_branch_as_it_was(ctx: kv.Context, other: kv.Context) -> None:
    trunk = await ctx.branch([5, 6, 7])
    await trunk.publish("desk")
    await trunk.extend([8])
    assert (await other.attach("desk")).tokens == [5, 6, 7]
    await trunk.publish("desk")  # its own
    assert (await other.attach("desk")).tokens == [5, 6, 7, 8]
    await trunk.publish("second")
    trunk.close()
    first, second = await other.attach("desk"), await other.attach("desk")  # as often as anybody likes
    await first.extend([9])
    assert second.tokens == [5, 6, 7, 8]


async def test_a_name_is_its_branchs_own(broken: Broken, ctx: kv.Context, other: kv.Context) -> None:
    trunk = await ctx.branch([5, 6, 7])
    await trunk.publish("desk")
    stranger, fork = await other.branch([5]), await trunk.fork()
    for each in (stranger, fork):
        with pytest.raises(kv.BranchExists, match=r"'desk'.*attach it, or take another name"):
            await each.publish("desk")
    there = await other.attach("desk")
    await there.extend([8])
    await there.publish("desk")  # it came from there
    with pytest.raises(kv.BranchExists):
        await trunk.publish("desk")  # which would undo what somebody else did
    await said(broken, "desk", "extend", tokens=[9])
    with pytest.raises(kv.BranchExists):
        await there.publish("desk")
    assert (await ctx.attach("desk")).tokens == [5, 6, 7, 8, 9]
    await trunk.publish("free")
    assert await listed(broken) == ["desk", "free"]


async def test_a_branch_that_works_on_the_server_is_not_replaced(broken: Broken, ctx: kv.Context) -> None:
    trunk = await ctx.branch(QUESTION)
    await trunk.publish("desk")
    endless = {"max_tokens": 7000, "stream": True, "output": {"type": "regex", "pattern": "[a-z ]{7000}"}}
    http = httpx.AsyncClient(base_url=broken.served.url)
    async with http, http.stream("POST", "/v1/branches/desk/generate", json=endless) as response:
        lines = response.aiter_lines()
        while await anext(lines) != "event: token":
            pass
        with pytest.raises(kv.BranchBusy, match="at another verb"):
            await trunk.publish("desk")
        await anext(lines)


async def test_an_unknown_name(broken: Broken, ctx: kv.Context) -> None:
    with pytest.raises(kv.BranchNotFound, match="'none'; there is none"):
        await ctx.attach("none")
    await (await ctx.branch([5])).publish("desk")
    with pytest.raises(kv.BranchNotFound, match="there are 'desk'"):
        await ctx.attach("none")
    assert len(ctx.branches) <= 1
    assert ctx.servers[0].failed == 0  # a server that has no such branch is well
    await forgotten(broken)  # as a server that was started anew
    with pytest.raises(kv.BranchNotFound, match="publish it again"):
        await ctx.attach("desk")


async def test_a_server_that_forgot_is_told_again(broken: Broken, ctx: kv.Context, other: kv.Context) -> None:
    trunk = await ctx.branch([5, 6, 7])
    await trunk.publish("desk")
    await forgotten(broken)
    await trunk.publish("desk")
    assert (await other.attach("desk")).tokens == trunk.tokens


@pytest.mark.parametrize("name", ["", "br_x", "a b", "../x", "é", "x" * 65, None, 5, b"x"])
async def test_names_that_cannot_be(ctx: kv.Context, name: Any) -> None:
    branch = await ctx.branch([5])
    for verb in (branch.publish, ctx.attach):
        with pytest.raises(kv.InvalidInput, match="name is"):
            await verb(name)


async def test_a_busy_branch_and_closed_ones(ctx: kv.Context) -> None:
    branch = await ctx.branch(QUESTION)
    async with branch.stream(max_tokens=500, sampling=DRAWN) as tokens:
        await anext(tokens)
        with pytest.raises(kv.BranchBusy):
            await branch.publish("desk")
    await branch.close()
    with pytest.raises(kv.BranchClosed):
        await branch.publish("desk")
    assert ctx.branches == []


async def test_a_context_of_this_process_has_no_server(local: kv.Context) -> None:
    branch = await local.branch([5])
    for verb in (branch.publish, local.attach):
        with pytest.raises(kv.InvalidInput, match=r"Context.connect\(url, backend='agentkv'\)"):
            await verb("desk")


@pytest.mark.parametrize("fault", [loses_the_answer, leaves_at_once, hangs_up, answers("503 Busy", b"{}")])
async def test_a_lost_reply_is_asked_for_again(broken: Broken, ctx: kv.Context, other: kv.Context, fault: Any) -> None:
    trunk = await ctx.branch([5, 6, 7])
    for tokens in ([5, 6, 7], [5, 6, 7, 8]):
        broken.proxy.faults.extend([fault] * 2)
        await trunk.publish("desk")
        assert (await other.attach("desk")).tokens == tokens
        await trunk.extend([8])
    broken.proxy.faults.extend([fault] * 2)
    assert (await ctx.attach("desk")).tokens == [5, 6, 7, 8]
    assert ctx.stats.retries == 6


async def test_a_publish_that_is_given_up_may_be_there_and_is_the_branchs_own(
    broken: Broken, ctx: kv.Context, other: kv.Context
) -> None:
    trunk = await ctx.branch([5, 6, 7])
    for _ in range(4):
        broken.proxy.faults.append(loses_the_answer)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(trunk.publish, "desk")
                await listed_on(broken, trunk.tokens)
                scope.cancel()
        assert (await other.attach("desk")).tokens == trunk.tokens
        await trunk.extend([8])  # not busy any more
    await trunk.publish("desk")
    assert (await other.attach("desk")).tokens == trunk.tokens


async def listed_on(broken: Broken, tokens: list[int]) -> None:
    """Waits until the server has the branch as it is now."""
    held = broken.served.server.branches._entries
    await until(lambda: "desk" in held and held["desk"].branch.tokens == tokens)


async def test_an_attach_that_is_given_up_leaves_nothing(broken: Broken, ctx: kv.Context) -> None:
    trunk = await ctx.branch([5, 6, 7])
    await trunk.publish("desk")
    for turns in range(0, 60, 3):
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.attach, "desk")
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    await ctx.keep(trunk)
    assert ctx.stats.branches == 1


async def test_several_tasks_publish_one_branch(ctx: kv.Context, other: kv.Context) -> None:
    trunk = await ctx.branch([5, 6, 7])

    async def publish() -> None:
        with suppress(kv.BranchBusy):
            await trunk.publish("desk")

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(publish)
    assert (await other.attach("desk")).tokens == [5, 6, 7]


async def test_an_agents_turn_goes_on_elsewhere(ctx: kv.Context, other: kv.Context) -> None:
    agent = kv.Agent("You are Nano, a desk agent.")
    branch = await (await agent.trunk(ctx)).fork()
    await agent.run(branch, "Who are you?")
    await branch.publish("agent")
    there = await other.attach("agent")
    mine, its = await agent.run(branch, "And what can you do?"), await agent.run(there, "And what can you do?")
    assert mine.text == its.text
    assert there.messages == branch.messages


EMPTY = {"before": None, "kept": 0, "entries": [], "first": 0, "start": 0, "end": 0, "tail": None, "opening": ""} | {
    "opened": False, "tools": None, "template": {}, "base": 0, "leftover": 0
}  # fmt: skip
GOOD: dict[str, Any] = {
    "tokens": [5, 6],
    "rng_stream": 0,
    "forks": 0,
    "conversations": {"states": [EMPTY]},
    "marks": {},
    "output": None,
}
DAMAGED: list[dict[str, Any]] = [
    {"tokens": [5, 10**6]},
    {"tokens": [-1]},
    {"tokens": "x"},
    {"rng_stream": -1},
    {"forks": 2**40},
    {"marks": {"here": 3}},
    {"marks": {"": 1}},
    {"conversations": {"states": []}},
    {"conversations": {"states": [EMPTY | {"end": 3}]}},
    {"conversations": {"states": [EMPTY | {"entries": [0]}]}},
    {"output": {"grammar": "nonsense", "began": 0, "end": 1, "complete": False}},
    {"output": {"grammar": "", "began": 1, "end": 9, "complete": False}},
    {"frobs": 1},
]


@pytest.mark.parametrize("damage", DAMAGED, ids=str)
async def test_a_branch_that_cannot_be_is_refused_by_the_server(broken: Broken, damage: dict[str, Any]) -> None:
    body = {"branch": GOOD | damage, "revision": "a" * 32}
    async with httpx.AsyncClient(base_url=broken.served.url) as http:
        refused = await http.put("/v1/branches/desk/snapshot", json=body)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"].startswith("branch")
        for wrong in ({"revision": "x"}, {"replaces": ["x"]}, {"fingerprint": "xxh3:0"}):
            refused = await http.put("/v1/branches/desk/snapshot", json=body | wrong)
            assert refused.status_code in (400, 409)
    assert await listed(broken) == []


@pytest.mark.parametrize("damage", [each for each in DAMAGED if "output" not in each], ids=str)
async def test_a_branch_that_cannot_be_is_refused_by_the_client(
    broken: Broken, ctx: kv.Context, damage: dict[str, Any]
) -> None:
    fingerprint = ctx.model_info.fingerprint
    told = {"branch": GOOD | damage, "revision": "a" * 32, "fingerprint": fingerprint}
    for body in (told, {"branch": GOOD, "revision": "x"}, {"branch": GOOD, "revision": "a" * 32, "fingerprint": "x"}):
        broken.proxy.faults.append(answers("200 OK", httpx.Request("GET", "http://x", json=body).content))
        with pytest.raises(kv.RemoteError):
            await ctx.attach("desk")
    assert ctx.branches == []


def test_what_is_published_has_a_form_in_json() -> None:
    published = PublishedBranch.model_validate_json(httpx.Request("PUT", "http://x", json=GOOD).content)
    assert PublishedBranch.model_validate_json(published.model_dump_json()) == published


async def test_of_several_servers_one_has_the_name(broken: Broken) -> None:
    thread = LoopThread(lambda: own_server(Path(kv.models.nano()), capacity=8192, threads=1))
    try:
        urls = [broken.served.url, thread.value.url]
        async with (
            kv.Context.connect(urls, backend="agentkv") as ctx,
            kv.Context.connect(urls[::-1], backend="agentkv") as other,
            kv.Context.connect(urls[0], backend="agentkv") as one,
            kv.Context.connect(urls[1], backend="agentkv") as two,
        ):
            for name in ("one", "two", "three", "four"):
                trunk = await ctx.branch(QUESTION)
                await trunk.publish(name)
                assert (await other.attach(name)).tokens == trunk.tokens
                with pytest.raises(kv.BranchExists):
                    await (await other.branch([5])).publish(name)
            await (await one.branch([5])).publish("here")
            await (await two.branch([6])).publish("there")  # wherever a name is, it is found
            assert [(await other.attach(name)).tokens for name in ("here", "there")] == [[5], [6]]
            with pytest.raises(kv.BranchNotFound):
                await ctx.attach("nowhere")
    finally:
        thread.close()
        await forgotten(broken)
