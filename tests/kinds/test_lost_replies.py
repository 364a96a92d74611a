"""Requests of `/v1/branches` whose answer is lost, and that are sent again with their `Idempotency-Key`: done once.

Add a row to VERBS: what is sent about the branch `trunk`, which holds a question, or about the server. A row holds if
the server is in the end as after one request that nothing happened to, and the answer is the one to that.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest

from agentkv._aio.loop_thread import LoopThread
from tests.agentkv.remote.faulty_proxy import leaves_at_once, loses_the_answer, proxied
from tests.agentkv.serve.conftest import Served, anyio_backend, serving
from tests.waiting import PATIENCE

__all__ = ["anyio_backend"]
pytestmark = pytest.mark.anyio

WHO = [{"role": "user", "content": "Who are you?"}]
DRAWN = {"temperature": 1, "seed": 5}
PUBLISHED = {
    "tokens": [5, 6, 7],
    "rng_stream": 3,
    "forks": 0,
    "conversations": {"states": [{"before": None, "kept": 0, "entries": [], "first": 0, "start": 0, "end": 0}]},
    "marks": {"here": 3},
    "output": None,
}
PUBLISHED["conversations"]["states"][0] |= {  # type: ignore[index]
    "tail": None, "opening": "", "opened": False, "tools": None, "template": {}, "base": 0, "leftover": 0
}  # fmt: skip


@dataclass(frozen=True)
class Verb:
    """One row."""

    path: str
    body: dict[str, Any] | None = field(default_factory=dict)
    method: str = "POST"


VERBS = [
    Verb("/trunk/extend", {"text": " an item"}),
    Verb("/trunk/extend", {"tokens": [5, 6]}),
    Verb("/trunk/extend", {"messages": [{"role": "user", "content": "And now?"}]}),
    Verb("/trunk/extend?whole=true", {"text": " an item"}),
    Verb("/trunk/rollback", {"length": 3}),
    Verb("/trunk/rollback", {"name": "start"}),
    Verb("/trunk/mark", {"name": "here"}),
    Verb("/trunk/fork", {}),
    Verb("/trunk/fork", {"n": 3}),
    Verb("/trunk/fork", {"names": ["one", "two"], "lease": "mine"}),
    Verb("/trunk/adopt", {"other": "other"}),
    Verb("/trunk/select", {"choices": ["yes", "no"]}),
    Verb("/trunk/generate", {"max_tokens": 5}),
    Verb("/trunk/generate", {"max_tokens": 5, "sampling": DRAWN}),
    Verb("/trunk/generate", {"max_tokens": 5, "stream": True}),
    Verb("/trunk/generate", {"max_tokens": 5, "stream": True, "output": {"type": "regex", "pattern": "[a-z]{9}"}}),
    Verb("/trunk/stop", {"length": 4}),
    Verb("/trunk/extend", {"text": " an item", "if_length": 27}),
    Verb("/trunk/rollback", {"length": 3, "if_mark": "as it is"}),
    Verb("", {"text": "Once"}),
    Verb("", {"messages": WHO, "name": "third", "lease": "mine"}),
    Verb("/trunk", None, "DELETE"),
    Verb("/trunk?if_length=27", None, "DELETE"),
    Verb("/third/snapshot", {"branch": PUBLISHED, "revision": "a" * 32}, "PUT"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    thread = LoopThread(serving)
    yield thread.value
    thread.close()


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, timeout=PATIENCE) as http:
        yield http
        await ended(served, http)


async def sent(http: httpx.AsyncClient, verb: Verb, body: Any, key: str) -> httpx.Response:
    headers = {"idempotency-key": key}
    return await http.request(verb.method, f"/v1/branches{verb.path}", json=body, headers=headers)


async def prepared(http: httpx.AsyncClient, verb: Verb) -> Any:
    """The body of a verb about two branches that are there from now on."""
    for name in ("trunk", "other"):
        made = await http.post("/v1/branches", json={"messages": WHO, "name": name})
        assert made.json()["length"] == 27
    await http.post("/v1/branches/other/extend", json={"text": "x"})
    await http.post("/v1/branches/trunk/mark", json={"name": "start"})
    mark = (await http.get("/v1/branches/trunk")).json()["mark"]
    return {**verb.body, "if_mark": mark} if verb.body is not None and "if_mark" in verb.body else verb.body


async def ended(served: Served, http: httpx.AsyncClient) -> list[Any]:
    """What all branches were, which are closed now."""
    were = []
    for name in list(served.server.branches._entries):
        told = (await http.get(f"/v1/branches/{name}")).json()
        chosen = "" if name.startswith("br_") else name
        were.append((chosen, told["lease"] or "", told["tokens"], told["marks"], str(told["messages"])))
        await http.delete(f"/v1/branches/{name}")
    return sorted(were)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: f"{verb.method} {verb.path} {str(verb.body)[:40]}")
async def test_what_is_sent_again_is_done_once(served: Served, http: httpx.AsyncClient, verb: Verb) -> None:
    plain = await sent(http, verb, await prepared(http, verb), str(uuid4()))
    assert plain.status_code == 200, plain.text
    once = await ended(served, http)

    body = await prepared(http, verb)
    key, faults = str(uuid4()), [leaves_at_once, loses_the_answer, loses_the_answer]
    async with proxied(served.url) as proxy, httpx.AsyncClient(base_url=proxy.url, timeout=PATIENCE) as lossy:
        for fault in faults:
            proxy.faults.append(fault)
            with pytest.raises(httpx.HTTPError):
                await sent(lossy, verb, body, key)
        answers = [await sent(http, verb, body, key) for _ in range(2)]
    assert await ended(served, http) == once
    assert answers[0].status_code == 200, answers[0].text
    assert answers[0].text == answers[1].text
    assert same(answers[0].text) == same(plain.text)


def same(text: str) -> str:
    """Without what is another number each time."""
    text = re.sub(r'"usage": {[^}]*}', "", text)
    return re.sub(r'br_[0-9a-f]+|"(mark|number|reused)": "?[0-9:]+"?', "", text)
