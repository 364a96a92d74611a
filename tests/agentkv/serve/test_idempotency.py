"""`Idempotency-Key`: what a second request gets while the first runs, after it failed, and when memory is short."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest

from agentkv.serve.http import idempotency
from tests.faults import fail_at

from .conftest import Served, serving
from .test_branch_verbs import WHO, made

pytestmark = pytest.mark.anyio

LONG = {"max_tokens": 400, "sampling": {"temperature": 1, "seed": 5, "logit_bias": {"2": -100}}}


def keyed(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


def tokens_of(events: str) -> list[int]:
    told = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")]
    return [each["id"] for each in told if "id" in each and "logprob" in each]


async def hung_up_on(served: Served, path: str, body: dict[str, Any], key: str) -> None:
    """A stream whose client is gone after its first token."""
    http = httpx.AsyncClient(base_url=served.url)
    async with http, http.stream("POST", path, json=body, headers=keyed(key)) as response:
        async for line in response.aiter_lines():
            if line == "event: token":
                return


@pytest.mark.parametrize("stream", [False, True])
async def test_a_second_request_waits_for_the_first_and_gets_its_answer(served: Served, stream: bool) -> None:
    branch = await made(served, **WHO)
    path, body = f"/v1/branches/{branch['id']}/generate", LONG | {"stream": stream}
    answers: list[str] = []

    async def ask() -> None:
        answers.append((await served.http.post(path, json=body, headers=keyed("once"))).text)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await served.until(lambda: served.ctx.stats.generated > 3)
        for _ in range(3):
            group.start_soon(ask)
    assert len(answers) == 4
    assert len(set(answers)) == 1
    held = served.server.branches.get(branch["id"])
    assert held is not None
    assert len(held.branch) == branch["length"] + 400


async def test_a_stream_that_was_cut_comes_again_from_its_beginning(served: Served) -> None:
    branch = await made(served, **WHO)
    path, body = f"/v1/branches/{branch['id']}/generate", LONG | {"stream": True}
    await hung_up_on(served, path, body, "once")
    again = await served.http.post(path, json=body, headers=keyed("once"))
    tokens = tokens_of(again.text)
    assert len(tokens) == 400
    whole = (await served.http.get(f"/v1/branches/{branch['id']}")).json()
    assert whole["tokens"][branch["length"] :] == tokens


async def test_stop_and_delete_end_what_goes_on_without_a_client(served: Served) -> None:
    endless = {"max_tokens": 7000, "stream": True, "output": {"type": "regex", "pattern": "[a-z ]{7000}"}}
    for end in ("stop", "delete"):
        path = f"/v1/branches/{(await made(served, text='Once'))['id']}"
        await hung_up_on(served, f"{path}/generate", endless, "once")
        assert served.server.admission.running == 1
        if end == "stop":
            stopped = await served.http.post(f"{path}/stop", json={"length": 3})
            assert stopped.json()["length"] == 3
            told = await served.http.post(f"{path}/generate", json=endless, headers=keyed("once"))
            assert '"code": "stopped"' in told.text  # as the first would have heard
        else:
            await served.http.delete(path)
        await served.until_idle()


async def test_another_request_with_the_same_key_is_refused(served: Served) -> None:
    branch = await made(served, **WHO)
    path = f"/v1/branches/{branch['id']}"
    first = await served.http.post(f"{path}/extend", json={"text": "a"}, headers=keyed("once"))
    for verb, body in (("extend", {"text": "b"}), ("extend?whole=true", {"text": "a"}), ("select", {"choices": ["a"]})):
        other = await served.http.post(f"{path}/{verb}", json=body, headers=keyed("once"))
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    again = await served.http.post(f"{path}/extend", json={"text": "a", "template": None}, headers=keyed("once"))
    assert again.text == first.text  # what is left out is the same as what is said to be nothing
    other = await made(served, **WHO)  # keys are of one branch
    of_other = f"/v1/branches/{other['id']}/extend"
    assert (await served.http.post(of_other, json={"text": "b"}, headers=keyed("once"))).status_code == 200
    for key in ("", "x" * 256):
        refused = await served.http.post(f"{path}/extend", json={"text": "a"}, headers=keyed(key))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key")


async def test_what_came_to_nothing_may_be_sent_again(served: Served) -> None:
    branch = await made(served, **WHO)
    path = f"/v1/branches/{branch['id']}"
    body = {"text": "a", "if_length": branch["length"] + 1}
    refused = await served.http.post(f"{path}/extend", json=body, headers=keyed("once"))
    assert refused.status_code == 409
    await served.http.post(f"{path}/extend", json={"tokens": [5]})
    done = await served.http.post(f"{path}/extend", json=body, headers=keyed("once"))
    assert done.status_code == 200
    again = await served.http.post(f"{path}/extend", json=body, headers=keyed("once"))
    assert again.text == done.text


@pytest.mark.usefixtures("failing_caches")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_after_some_tokens_is_an_answer_too(stream: bool) -> None:
    async with serving() as served:
        branch = await made(served, **WHO)
        path = f"/v1/branches/{branch['id']}"
        await fail_at(served.ctx, 1, after=2)
        asked = {"max_tokens": 20, "stream": stream}
        failed = await served.http.post(f"{path}/generate", json=asked, headers=keyed("once"))
        assert '"step_failed"' in failed.text
        held = (await served.http.get(path)).json()
        assert held["length"] > branch["length"]
        again = await served.http.post(f"{path}/generate", json=asked, headers=keyed("once"))
        assert again.text == failed.text
        assert (await served.http.get(path)).json() == held


async def test_memory_is_bounded_and_nothing_is_done_twice_for_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MOST_KEYS", 8)
    monkeypatch.setattr(idempotency, "MOST_BYTES", 2000)
    branch = await made(served, **WHO)
    path = f"/v1/branches/{branch['id']}"
    for number in range(12):
        await served.http.post(f"{path}/extend", json={"tokens": [5]}, headers=keyed(f"key {number}"))
    held = served.server.branches.get(branch["id"])
    assert held is not None
    assert len(held.answers) == 8
    assert sum(each.nbytes or 0 for each in held.answers._by_key.values()) <= 2000
    old = await served.http.post(f"{path}/extend", json={"tokens": [5]}, headers=keyed("key 5"))
    assert (old.status_code, old.json()["error"]["code"]) == (409, "idempotency_answer_dropped")
    new = await served.http.post(f"{path}/extend", json={"tokens": [5]}, headers=keyed("key 11"))
    assert new.json()["length"] == branch["length"] + 12 == len(held.branch)


async def test_a_request_that_is_given_up_in_this_process_leaves_its_key_free(served: Served) -> None:
    """Through the application itself, where a client's cancellation reaches the work."""
    branch = await made(served, **WHO)
    path = f"/v1/branches/{branch['id']}"
    transport = httpx.ASGITransport(app=served.app)
    async with httpx.AsyncClient(transport=transport, base_url=served.url) as http, anyio.create_task_group() as group:
        endless = {"max_tokens": 7000, "output": {"type": "regex", "pattern": "[a-z ]{7000}"}}
        group.start_soon(lambda: http.post(f"{path}/generate", json=endless, headers=keyed("once")))
        await served.until(lambda: served.ctx.stats.generated > 3)
        group.cancel_scope.cancel()
    await served.until_idle()
    told = await served.http.post(f"{path}/generate", json=endless, headers=keyed("once"))
    assert (told.status_code, told.json()["error"]["code"]) == (409, "given_up")  # its tokens are there
