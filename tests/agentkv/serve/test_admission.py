"""Who may ask now, who waits, who is turned away, and how a server stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import openai
import pytest

from agentkv.serve.admission import Admission, Departures
from agentkv.serve.http.errors import ApiError
from tests.waiting import SOON, until

from .conftest import SETTINGS, Served, serving

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


def long_one(site: Served, **more: Any) -> dict[str, Any]:
    """A request that goes on for as long as it may."""
    biased = {str(i): -100 for i in site.ctx.tokenizer.eos_ids}
    messages = [{"role": "user", "content": "Say hi"}]
    return {"model": "nano", "messages": messages, "logit_bias": biased, **more}


async def test_places_are_given_in_order_and_the_queue_is_bounded() -> None:
    admission = Admission(1, 2)
    order: list[int] = []
    let_go = anyio.Event()

    async def ask(index: int) -> None:
        async with admission.place(60):
            order.append(index)
            await let_go.wait()

    async with anyio.create_task_group() as group:
        for index in range(3):
            group.start_soon(ask, index)
            await anyio.wait_all_tasks_blocked()
        assert (admission.running, admission.waiting) == (1, 2)
        with pytest.raises(ApiError) as caught:
            async with admission.place(60):
                pass
        assert caught.value.status == 429
        assert int(caught.value.headers["retry-after"]) >= 1
        let_go.set()
    assert order == [0, 1, 2]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_those_who_are_cancelled_or_late_leave_their_place() -> None:
    admission = Admission(1, 4)
    async with admission.place(60):
        with pytest.raises(TimeoutError):
            async with admission.place(SOON):
                pass
        with anyio.move_on_after(SOON):
            async with admission.place(60):
                pass
        assert (admission.running, admission.waiting) == (1, 0)
    with pytest.raises(TimeoutError):
        async with admission.place(SOON):
            await anyio.sleep_forever()
    async with admission.place(60):
        assert admission.running == 1


async def test_nobody_waits_for_another_to_leave_where_all_do() -> None:
    requests = Departures()
    answers: list[bool] = []

    async def ask() -> None:
        with requests.one():
            await anyio.lowlevel.checkpoint()
            while await requests.next():
                pass
            answers.append(False)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(ask)
    assert answers == [False] * 4
    assert (requests.running, requests.ended) == (0, 4)


async def test_a_server_that_drains_lets_what_runs_end() -> None:
    admission = Admission(4, 4)
    let_go = anyio.Event()
    ended: list[int] = []

    async def ask() -> None:
        async with admission.place(60):
            await let_go.wait()
        ended.append(1)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(admission.drain, 60)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ApiError) as caught:
            async with admission.place(60):
                pass
        assert caught.value.status == 503
        let_go.set()
    assert ended == [1]


async def test_what_is_not_done_in_time_is_told_so() -> None:
    async with serving() as site:
        whole: list[httpx.Response] = []

        async def ask() -> None:
            whole.append(await site.http.post(CHAT, json=long_one(site)))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            stream = await site.openai.chat.completions.create(**long_one(site), stream=True)
            async for _ in stream:
                break
            await until(lambda: site.server.admission.running == 2)
            assert await site.server.admission.drain(SOON) == 2
            with pytest.raises(openai.APIError, match="stopping"):
                async for _ in stream:
                    pass
        assert whole[0].status_code == 503
        assert whole[0].json()["error"]["code"] == "stopping"
        assert (await site.http.get("/health")).status_code == 503
        assert (await site.http.post(CHAT, json=long_one(site))).status_code == 503


async def test_deadlines_of_the_server_and_of_its_clients() -> None:
    async with serving(replace(SETTINGS, most_kept=0)) as site:
        for headers in ({"x-request-timeout": str(SOON)}, {}):
            if not headers:
                object.__setattr__(site.server.settings, "most_seconds", SOON)
            late = await site.http.post(CHAT, json=long_one(site), headers=headers)
            assert late.status_code == 408
            assert late.json()["error"]["code"] == "timeout"
            assert not site.ctx.branches
        for wrong in ("0", "-1", "nan", "soon", "inf"):
            answer = await site.http.post(CHAT, json=long_one(site), headers={"x-request-timeout": wrong})
            assert answer.status_code == 400


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with serving(replace(SETTINGS, most_running=1, most_waiting=0)) as site:
        stream = await site.openai.chat.completions.create(**long_one(site), stream=True)
        async for _ in stream:
            break
        turned_away = await site.http.post(CHAT, json=long_one(site, max_tokens=2))
        assert turned_away.status_code == 429
        assert turned_away.headers["retry-after"]
        await stream.close()
        await site.until_idle()
        assert (await site.http.post(CHAT, json=long_one(site, max_tokens=2))).status_code == 200
