"""Contexts over `agentkv serve`: the same tokens as in this process, to the bit; what is known, and what is refused."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from agentkv.remote import network
from tests.waiting import NEVER, PATIENCE, SOON

from .conftest import QUESTION, Broken
from .faulty_proxy import hangs
from .over_server import own_server

pytestmark = pytest.mark.anyio


@pytest.fixture
async def remote(broken: Broken) -> AsyncIterator[kv.Context]:
    async with kv.Context.connect(broken.served.url, backend="agentkv") as ctx:
        yield ctx


async def test_all_verbs_say_what_they_say_in_this_process(remote: kv.Context, local: kv.Context) -> None:
    async def said(ctx: kv.Context) -> list[Any]:
        told: list[Any] = []
        hot = kv.Sampling(temperature=1.2, top_k=40, repetition_penalty=1.1, presence_penalty=0.3, seed=9)
        trunk = await ctx.branch(QUESTION)
        await trunk.draw_as(5)
        mark = trunk.mark()
        told.append(await trunk.generate(max_tokens=30, sampling=hot, top_logprobs=4))
        await trunk.rollback(mark)
        kids = await trunk.fork(3)
        told += await kv.gather(*(kid.generate(max_tokens=20, sampling=hot, stop=["a", "st"]) for kid in kids))
        await trunk.adopt(kids[1])
        told.append((await trunk.logits()).tobytes())
        told.append((await trunk.select(["yes", "no", "Tolvik"])).logprobs)
        async with kids[0].stream(max_tokens=8, sampling=hot) as tokens:
            told.append([(token.id, token.text, token.logprob) async for token in tokens])
        told.append((await kids[2].generate(output=Literal["sunny", "rainy"], sampling=hot)).output)
        await kids[2].extend([{"role": "user", "content": "And in Brasno?"}])
        told += [branch.tokens for branch in (trunk, *kids)]
        told += [[message.content for message in branch.messages] for branch in (trunk, *kids)]
        return told

    here, there = await said(local), await said(remote)
    for one, other in zip(here, there, strict=True):
        assert one == other


async def test_what_is_known_of_the_model(remote: kv.Context, local: kv.Context) -> None:
    told, mine = remote.model_info, local.model_info
    for name in ("vocab_size", "max_positions", "n_layers", "bit_exact", "fingerprint", "quantization"):
        assert getattr(told, name) == getattr(mine, name)
    assert (told.backend, told.top_logits, told.speculates, told.holds_cells) == ("agentkv", None, False, False)
    assert (mine.top_logits, mine.speculates, mine.holds_cells) == (None, True, True)
    assert "nano" in repr(remote) or "tiny" in repr(remote)


async def test_what_a_server_cannot_do_is_refused_by_name(remote: kv.Context) -> None:
    branch = await remote.branch(QUESTION)
    with pytest.raises(kv.InvalidInput, match="forget"):
        await branch.forget(1, 3)
    with pytest.raises(kv.InvalidInput, match="speculative"):
        await branch.generate(speculative=kv.spec.PromptLookup())
    with pytest.raises(kv.InvalidInput, match="is a model of a server, and a draft model runs here"):
        kv.spec.DraftModel(remote)

    class Own:
        def begin(self) -> None: ...
        def mask(self) -> None: ...
        def advance(self, token: int) -> None: ...
        def fork(self) -> None: ...
        def rollback(self, n: int) -> None: ...
        def done(self) -> bool:
            return False

    with pytest.raises(kv.InvalidInput, match="object of this process"):
        await branch.generate(output=Own())  # type: ignore[call-overload]


async def test_an_output_that_was_cut_goes_on(remote: kv.Context, local: kv.Context) -> None:
    async def said(ctx: kv.Context) -> list[Any]:
        branch = await ctx.branch(QUESTION)
        await branch.draw_as(3)
        hot: dict[str, Any] = {"sampling": kv.Sampling(temperature=1.5, seed=3, frequency_penalty=0.5)}
        pieces = [await branch.generate(output=list[int], max_tokens=n, **hot) for n in (2, 3, 1)]
        await branch.rollback(len(branch) - 1)
        (kid,) = await branch.fork(1)
        pieces += [await each.generate(output=list[int], max_tokens=200, **hot) for each in (branch, kid)]
        return [(piece.tokens, piece.logprobs, piece.finish_reason) for piece in pieces] + [pieces[3].output]

    assert await said(remote) == await said(local)


async def test_branches_are_saved_as_their_tokens(remote: kv.Context, local: kv.Context, tmp_path: Path) -> None:
    branch = await remote.branch(QUESTION)
    await branch.draw_as(4)
    branch.mark("asked")
    await branch.save(tmp_path / "branch")
    hot: dict[str, Any] = {"max_tokens": 12, "sampling": kv.Sampling(temperature=1, seed=2)}
    expected = await branch.generate(**hot)
    again = await remote.load(tmp_path / "branch")
    assert [message.content for message in again.messages] == [QUESTION[0]["content"]]
    assert again.marks.keys() == {"asked"}
    assert (await again.generate(**hot)).tokens == expected.tokens
    with pytest.raises(kv.SnapshotMismatch):
        await local.load(tmp_path / "branch")
    here = await local.load(tmp_path / "branch", recompute=True)
    assert (await here.generate(**hot)).tokens == expected.tokens


async def test_what_was_saved_here_goes_on_there(remote: kv.Context, local: kv.Context, tmp_path: Path) -> None:
    branch = await local.branch(QUESTION)
    await branch.draw_as(4)
    await branch.save(tmp_path / "branch")
    await local.save(tmp_path / "all", {"one": branch})
    hot: dict[str, Any] = {"max_tokens": 12, "sampling": kv.Sampling(temperature=1, seed=2)}
    expected = await branch.generate(**hot)
    with pytest.raises(kv.SnapshotMismatch):
        await remote.load(tmp_path / "branch")
    there = await remote.load(tmp_path / "branch", recompute=True)
    (other,) = (await remote.load_all(tmp_path / "all", recompute=True)).values()
    for each in (there, other):
        assert [message.content for message in each.messages] == [QUESTION[0]["content"]]
        assert (await each.generate(**hot)).tokens == expected.tokens


async def test_a_long_branch_that_was_saved_here_is_loaded_there(
    remote: kv.Context, local: kv.Context, tmp_path: Path
) -> None:
    branch = await local.branch([20 + i % 500 for i in range(300)])
    await local.save(tmp_path / "all", {"one": branch})
    (there,) = (await remote.load_all(tmp_path / "all", recompute=True)).values()
    assert there.tokens == branch.tokens
    await branch.forget(5, 30)
    await local.save(tmp_path / "forgot", {"one": branch})
    with pytest.raises(kv.InvalidInput, match="forgot tokens"):
        await remote.load_all(tmp_path / "forgot", recompute=True)


async def test_any_number_of_choices_and_stop_strings(remote: kv.Context, local: kv.Context) -> None:
    choices, stop = [f"word {i}" for i in range(600)], [f"zz{i}" for i in range(40)]
    said = []
    for ctx in (remote, local):
        branch = await ctx.branch(QUESTION)
        said.append([(await branch.select(choices)).logprobs, (await branch.generate(max_tokens=9, stop=stop)).tokens])
    assert said[0] == said[1]


async def test_a_full_branch_makes_nothing_more() -> None:
    thread = LoopThread(lambda: own_server(kv.models.nano(), capacity=300, threads=1))
    async with kv.Context.connect(thread.value.url, backend="agentkv") as ctx:
        branch = await ctx.branch([7] * 300)
        generation = await branch.generate(max_tokens=5)
        assert (len(generation.tokens), generation.finish_reason) == (1, "context_full")
        again = await branch.generate(max_tokens=5)
        assert (again.tokens, again.finish_reason) == ([], "context_full")
        with pytest.raises(kv.ContextFull):
            await branch.extend([7])
    thread.close()


async def test_a_slow_reader_has_only_what_it_may(remote: kv.Context) -> None:
    branch, other = await remote.branch(QUESTION), await remote.branch(QUESTION)
    endless = kv.Sampling(logit_bias={2: -100})
    async with branch.stream(max_tokens=300, sampling=endless, buffer=4) as tokens:
        assert len((await other.generate(max_tokens=100, sampling=endless)).tokens) == 100
        assert len(await remote._core.loop.call(lambda engine: engine.tokens(branch.id))) - len(branch) <= 4
        assert len([token async for token in tokens]) == 300


async def test_an_output_that_a_stop_string_cut_goes_on(remote: kv.Context, local: kv.Context) -> None:
    async def said(ctx: kv.Context) -> list[Any]:
        branch, code = await ctx.branch("The code is "), kv.Regex("[0-9]{3}-[0-9]{3}")
        cut = await branch.generate(output=code, stop=["-"], max_tokens=20)
        whole = await branch.generate(output=code, max_tokens=20)
        return [cut.text, cut.finish_reason, whole.text, whole.output, branch.tokens]

    assert await said(remote) == await said(local)


async def test_an_overflow_policy_makes_room(local: kv.Context) -> None:
    thread = LoopThread(lambda: own_server(kv.models.nano(), capacity=300, threads=1))
    oldest = kv.overflow.DropOldest()
    async with kv.Context.connect(thread.value.url, backend="agentkv", overflow=oldest) as ctx:
        branch = await ctx.branch(QUESTION)
        endless = kv.Sampling(logit_bias={2: -100})
        generation = await branch.generate(max_tokens=3000, sampling=endless)
        assert (generation.finish_reason, len(generation.tokens)) == ("length", 3000)
        assert len(branch) <= 301
        for other in await branch.fork(2):  # what others hold does not lack on the server: it drops them
            generation = await other.generate(max_tokens=400, sampling=endless)
            assert (generation.finish_reason, len(generation.tokens)) == ("length", 400)
    thread.close()


async def test_a_policy_may_exchange_tokens_of_a_branch_that_is_full() -> None:
    class Exchanges:
        lacked = 0

        async def make_room(self, room: kv.overflow.Room) -> bool:
            self.lacked = room.cells
            await room.replace(0, 2, [7, 8])
            return True

    thread = LoopThread(lambda: own_server(kv.models.nano(), capacity=48, threads=1))
    there, here = Exchanges(), Exchanges()
    for opened in (
        kv.Context.connect(thread.value.url, backend="agentkv", overflow=there),
        kv.Context.open(kv.models.nano(), capacity=48, threads=1, overflow=here),
    ):
        async with opened as ctx:
            branch = await ctx.branch([5] * 40)
            generation = await branch.generate(max_tokens=30, sampling=kv.Sampling(logit_bias={2: -100}))
            assert (generation.finish_reason, len(branch)) == ("context_full", 49)
    assert there.lacked == here.lacked > 0
    thread.close()


async def test_a_waiting_connect_is_cancelled_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, anyio.fail_after(PATIENCE):
        with anyio.move_on_after(SOON) as limit:
            async with kv.Context.connect(
                f"http://127.0.0.1:{silent.getsockname()[1]}", backend="agentkv", timeout=NEVER
            ):
                pass
        assert limit.cancelled_caught
    assert not [thread for thread in threading.enumerate() if thread.name == "agentkv-net"]


@pytest.mark.parametrize(("name", "value"), [("ALL_PROXY", "ftp://x"), ("NO_PROXY", "[::1")])
async def test_an_environment_that_no_connection_can_be_made_in_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(kv.InvalidInput, match=name):
        async with kv.Context.connect("http://127.0.0.1:1", backend="agentkv"):
            pass
    assert not [thread for thread in threading.enumerate() if thread.name == "agentkv-net"]


async def test_a_proxy_that_there_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:99999")
    with pytest.raises(kv.RemoteError, match=r"port must be 0-65535.*ALL_PROXY"):
        async with kv.Context.connect("http://127.0.0.1:1", backend="agentkv"):
            pass


@pytest.mark.parametrize(
    "given",
    [
        {"url": "nope"},
        {"url": []},
        {"url": ["http://a/v1", "http://a/v1/"]},
        {"url": "ftp://a"},
        {"url": 3},
        {"url": "http://127.0.0.1:99999"},
        {"url": "http://127.0.0.1:-1"},
        {"url": "http://xn--/"},
        {"url": "http://h/\ud800"},
        {"url": "http://h/%3Fq"},
        {"verify": "\0"},
        {"backend": "ollama"},
        {"timeout": 0},
        {"retries": -1},
        {"most_running": 0},
        {"api_key": "a\nb"},
        {"model": 5},
        {"model": ""},
        {"api_key": "copied-with-a-space "},
        {"verify": "/no/such/file"},
    ],
)
async def test_bad_arguments_are_refused_before_anybody_is_asked(given: dict[str, Any]) -> None:
    with pytest.raises(kv.InvalidInput):
        async with kv.Context.connect(**{"url": "http://127.0.0.1:1/v1"} | given):
            pass


async def test_a_model_or_tokenizer_that_is_not_there(broken: Broken, tmp_path: Path) -> None:
    for given in ({"model": "other"}, {"tokenizer": tmp_path}):
        with pytest.raises(kv.ModelError):
            async with kv.Context.connect(broken.served.url, backend="agentkv", **given):  # type: ignore[arg-type]
                pass


async def test_a_server_that_is_silent_when_opened(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "OPENING_S", SOON)
    broken.proxy.faults.append(hangs)
    with pytest.raises(kv.RemoteError, match="no server answered"):
        async with kv.Context.connect(broken.proxy.url, backend="agentkv"):
            pass


async def test_a_thread_may_block_on_it(broken: Broken) -> None:
    def script() -> str:
        with kv.Context.connect(broken.served.url, backend="agentkv").sync() as ctx:
            return ctx.branch(QUESTION).generate(max_tokens=40).text

    from anyio import to_thread

    assert await to_thread.run_sync(script)


async def test_replicas_share_the_work_and_outlive_one_another(local: kv.Context) -> None:
    threads = [LoopThread(lambda: own_server(kv.models.nano(), capacity=8192, threads=1)) for _ in range(2)]
    urls = [thread.value.url for thread in threads]
    async with kv.Context.connect(urls, backend="agentkv") as ctx, AsyncExitStack() as stack:
        trees = [await ctx.branch([20 + n] * 300) for n in range(12)]
        for tree in trees:
            await stack.enter_async_context(tree)
        kids = [await tree.fork(4) for tree in trees]
        for some in kids:
            await kv.gather(*(kid.generate(max_tokens=4) for kid in some))
        computed = [thread.value.ctx.stats.prefilled for thread in threads]
        assert sum(computed) <= 12 * 300 + 12 * 4 * 2  # each trunk on one of them
        assert min(computed) > 0
        await asyncio.to_thread(threads[0].close) if _on_asyncio() else threads[0].close()
        assert [len((await tree.generate(max_tokens=3)).tokens) for tree in trees] == [3] * 12
    threads[1].close()


def _on_asyncio() -> bool:
    import sniffio

    return sniffio.current_async_library() == "asyncio"


async def test_no_thread_outlives_its_context(broken: Broken) -> None:
    async with kv.Context.connect(broken.served.url, backend="agentkv") as ctx:
        await ctx.branch(QUESTION)
        assert [thread.name for thread in threading.enumerate()].count("agentkv-net") == 1
    assert [thread.name for thread in threading.enumerate()].count("agentkv-net") == 0
