"""OpenAI's own client on a model in this process."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import openai
import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from agentkv.adapters.openai import blocking_client, client
from tests.waiting import PATIENCE, SOON, until_sync

from ..conftest import loop_threads
from .conftest import NO_CALL, freed

pytestmark = pytest.mark.anyio

QUESTION = {"model": "nano", "messages": [{"role": "user", "content": NO_CALL}], "temperature": 0}


async def test_it_answers_what_a_server_answers(ctx: kv.Context) -> None:
    local = client(ctx)
    whole = await local.chat.completions.create(**QUESTION)
    stream = await local.chat.completions.create(**QUESTION, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == whole.choices[0].message.content == "I am Nano, your desk agent."
    response = await local.responses.create(model="nano", input=NO_CALL, temperature=0)
    assert response.output_text == whole.choices[0].message.content
    assert [model.id async for model in local.models.list()] == ["nano"]
    named = await local.chat.completions.create(**{**QUESTION, "model": "gpt", "store": True, "verbosity": "low"})
    assert (named.model, named.choices[0].message) == ("gpt", whole.choices[0].message)


async def test_a_stream_that_is_left_ends_what_it_read(ctx: kv.Context) -> None:
    bias = {str(i): -100 for i in ctx.tokenizer.eos_ids}
    async with freed(ctx):
        stream = await client(ctx).chat.completions.create(**QUESTION, stream=True, logit_bias=bias)
        async for _ in stream:
            break
        await stream.close()


async def test_who_asks_may_say_how_long_to_wait(ctx: kv.Context) -> None:
    bias = {str(i): -100 for i in ctx.tokenizer.eos_ids}
    async with freed(ctx):
        with pytest.raises(openai.APITimeoutError):
            await client(ctx).chat.completions.create(**QUESTION, logit_bias=bias, timeout=SOON)
    stream = await client(ctx).chat.completions.create(**QUESTION, stream=True, timeout=PATIENCE)
    assert [chunk async for chunk in stream]


def test_threads_ask_at_once() -> None:
    def answers() -> list[str | None]:
        local = blocking_client(kv.models.nano(), capacity=4096, threads=1)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(local.chat.completions.create, **QUESTION) for _ in range(8)]
            return [future.result(PATIENCE).choices[0].message.content for future in asked]

    assert answers() == ["I am Nano, your desk agent."] * 8
    gc.collect()
    # The model is closed, as nobody has its client.
    until_sync(lambda: all(thread.name != "agentkv-loop" for thread in threading.enumerate()))


def test_a_client_of_several_event_loops() -> None:
    local = client(kv.models.nano(), capacity=1024, threads=1)

    async def ask() -> str | None:
        return (await local.chat.completions.create(**QUESTION)).choices[0].message.content

    assert len({asyncio.run(ask()) for _ in range(3)}) == 1
    asyncio.run(local.close())
    assert loop_threads() == []


async def test_clients_of_one_context_keep_so_many_conversations_in_all() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=8192, threads=1) as ctx:
        for number in range(140):
            async with client(ctx) as local:
                question = {"role": "user", "content": f"Number {number}"}
                await local.chat.completions.create(model="nano", messages=[question], max_tokens=1)  # type: ignore[list-item]
        assert len(ctx.branches) <= 130
        first = ctx.stats.prefilled
        again = [{"role": "user", "content": "Number 139"}]
        await client(ctx).chat.completions.create(model="nano", messages=again, max_tokens=1)  # type: ignore[arg-type]
        assert ctx.stats.prefilled - first <= 1


async def test_options_that_open_nothing_are_refused_at_once(ctx: kv.Context) -> None:
    with pytest.raises(kv.InvalidInput, match="has no capcity"):
        client("nano", capcity=512)
    with pytest.raises(kv.InvalidInput, match="capacity went to"):
        client(ctx, capacity=512)


def test_a_signal_that_comes_as_the_model_opens_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    local, told = blocking_client("nano", capacity=512, threads=1), list[str]()

    def opens(open_it: Any) -> LoopThread[kv.Context]:
        signal.raise_signal(signal.SIGUSR1)
        return LoopThread(open_it)

    def handles(signum: int, frame: object) -> None:
        for uses in (lambda: local.chat.completions.create(**QUESTION), local.close):
            with pytest.raises(kv.WrongEventLoop) as refused:
                uses()
            told.append(str(refused.value))

    monkeypatch.setattr("agentkv.adapters._local.LoopThread", opens)
    before = signal.signal(signal.SIGUSR1, handles)
    try:
        with suppress(RuntimeError):  # the client itself is closed by then
            local.chat.completions.create(**QUESTION)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ["signal handler" in each for each in told] == [True, True]
    local.close()


async def test_conversations_that_wait_give_way_until_one_goes_on() -> None:
    long = {"model": "nano", "messages": [{"role": "user", "content": "x" * 40}], "temperature": 0, "max_tokens": 150}
    async with kv.Context.open(kv.models.nano(), capacity=256, threads=1) as small:
        local, said = client(small), list[dict[str, str]]()
        for question in [NO_CALL, "Thank you!"] * 3:
            said.append({"role": "user", "content": question})
            told = await local.chat.completions.create(model="nano", messages=said, temperature=0)
            said.append({"role": "assistant", "content": told.choices[0].message.content})
        assert small.stats.cells_used > 106  # its turns share most of them
        assert (await local.chat.completions.create(**long)).usage.completion_tokens == 150


async def test_what_comes_after_a_cut_answer_is_what_the_client_sends(ctx: kv.Context) -> None:
    local = client(ctx)
    for most in range(1, 8):
        cut = await local.chat.completions.create(**QUESTION, max_tokens=most)
        said = [*QUESTION["messages"], {"role": "assistant", "content": cut.choices[0].message.content}]
        further = [*said, {"role": "user", "content": "Thank you!"}]
        here = await local.chat.completions.create(model="nano", messages=further, max_tokens=2)
        prompt = ctx.tokenizer.apply_chat(further)
        assert here.usage.prompt_tokens == len(prompt), most


def test_closing_a_client_closes_the_model_that_it_opened() -> None:
    others = set(loop_threads())  # of clients that nobody has any more; they end when they end
    with blocking_client(kv.models.nano(), capacity=1024, threads=1) as local:
        local.chat.completions.create(**QUESTION)
        assert len(set(loop_threads()) - others) == 1
    assert set(loop_threads()) <= others


def test_a_process_ends_though_nothing_was_closed() -> None:
    script = (
        "import agentkv as kv; from agentkv.adapters.openai import blocking_client as client\n"
        "local = client(kv.models.nano(), capacity=512)\n"
        f"stream = local.chat.completions.create(**{QUESTION!r}, stream=True)\n"
        "print(next(iter(stream)).model)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("nano\n", "", 0)
