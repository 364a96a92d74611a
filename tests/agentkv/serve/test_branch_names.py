"""Names that clients choose, conditions, and leases: who loses a reply finds the branch, knows where it is, and leaves
nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from agentkv.serve.branches import registry as branches
from tests.waiting import PATIENCE

from .conftest import Serve, Served
from .test_branch_verbs import WHO, made

pytestmark = pytest.mark.anyio

ENDLESS = {"max_tokens": 7000, "stream": True, "output": {"type": "regex", "pattern": "[a-z ]{7000}"}}


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_a_name_is_an_id(served: Served) -> None:
    branch = await made(served, **WHO, name="desk-1.b")
    assert branch["id"] == "desk-1.b"
    forks = (await served.http.post("/v1/branches/desk-1.b/fork", json={"names": ["left", "right"]})).json()["forks"]
    assert [fork["id"] for fork in forks] == ["left", "right"]
    nameless = (await served.http.post("/v1/branches/left/fork", json={})).json()["forks"][0]["id"]
    listed = (await served.http.get("/v1/branches")).json()["data"]
    assert [each["id"] for each in listed] == ["desk-1.b", "left", "right"]  # ids that nobody can guess stay so
    assert listed[1]["parent"] == "desk-1.b"
    assert nameless.startswith("br_")
    await served.http.delete("/v1/branches/left")
    await made(served, name="left")  # free again


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("", {"name": "desk"}),
        ("/desk/fork", {"names": ["desk"]}),
        ("/desk/fork", {"names": ["new", "desk"]}),
    ],
)
async def test_a_name_that_is_taken_is_refused(served: Served, verb: str, body: dict[str, Any]) -> None:
    await made(served, **WHO, name="desk")
    assert code(await served.http.post(f"/v1/branches{verb}", json=body)) == (409, "name_taken")
    assert len(served.ctx.branches) == len(served.server.branches) == 1


async def test_a_name_is_taken_while_its_branch_is_made(served: Served) -> None:
    prompt = {"tokens": [5, 6] * 2000, "name": "desk"}
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: made(served, **prompt))
        await served.until(lambda: served.server.admission.running > 0)
        assert code(await served.http.post("/v1/branches", json=prompt)) == (409, "name_taken")
    assert len(served.server.branches) == 1


@pytest.mark.parametrize("name", ["br_x", "a b", "../x", "a/b", "é", "-a", "x" * 65, 5, ".hidden"])
async def test_names_that_cannot_be(served: Served, name: Any) -> None:
    await made(served, **WHO, name="desk")
    for path, body in (("", {"name": name}), ("", {"lease": name}), ("/desk/fork", {"names": [name]})):
        refused = await served.http.post(f"/v1/branches{path}", json=body)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["param"].startswith(next(iter(body)))
    for body in ({"names": ["a", "a"]}, {"names": ["a"], "n": 2}):
        assert (await served.http.post("/v1/branches/desk/fork", json=body)).status_code == 400
    assert len(served.server.branches) == 1


CONDITIONAL = [
    ("extend", {"text": "x"}),
    ("fork", {"n": 2}),
    ("mark", {"name": "m"}),
    ("rollback", {"length": 2}),
    ("adopt", {"other": "other"}),
    ("select", {"choices": ["yes", "no"]}),
    ("generate", {"max_tokens": 2}),
    ("generate", {"max_tokens": 2, "stream": True}),
]


@pytest.mark.parametrize(("verb", "body"), CONDITIONAL)
async def test_a_verb_whose_branch_is_elsewhere_changes_nothing(
    served: Served, verb: str, body: dict[str, Any]
) -> None:
    branch = await made(served, **WHO, name="desk")
    await made(served, text="other", name="other")
    before = (await served.http.get("/v1/branches/desk")).json()
    for condition in ({"if_length": branch["length"] - 1}, {"if_mark": f"{branch['length']}:999999"}):
        refused = await served.http.post(f"/v1/branches/desk/{verb}", json=body | condition)
        assert code(refused) == (409, "condition_failed")
        assert refused.json()["error"]["param"] == next(iter(condition))
        assert f"{branch['length']} tokens, at mark {before['mark']}" in refused.json()["error"]["message"]
    assert (await served.http.get("/v1/branches/desk")).json() == before
    assert len(served.server.branches) == 2
    holds = {"if_length": before["length"], "if_mark": before["mark"]}
    assert (await served.http.post(f"/v1/branches/desk/{verb}", json=body | holds)).status_code == 200


async def test_a_branch_that_went_on_is_not_deleted(served: Served) -> None:
    branch = await made(served, **WHO, name="desk")
    await served.http.post("/v1/branches/desk/extend", json={"text": "x"})
    assert code(await served.http.delete(f"/v1/branches/desk?if_mark={branch['mark']}")) == (409, "condition_failed")
    for length in ("x", "9" * 19, "9" * 5000):
        assert (await served.http.delete(f"/v1/branches/desk?if_length={length}")).status_code in (400, 409), length
    assert (await served.http.delete("/v1/branches/desk?frobs=1")).status_code == 400
    assert (await served.http.delete(f"/v1/branches/desk?if_length={branch['length'] + 1}")).status_code == 200


async def test_of_verbs_that_begin_from_the_same_place_one_is_done(served: Served) -> None:
    branch = await made(served, **WHO, name="desk")
    statuses: list[int] = []

    async def extend() -> None:
        body = {"messages": [{"role": "user", "content": "And now?"}], "if_length": branch["length"]}
        statuses.append((await served.http.post("/v1/branches/desk/extend", json=body)).status_code)

    async with anyio.create_task_group() as group:
        for _ in range(12):
            group.start_soon(extend)
    assert sorted(statuses) == [200] + [409] * 11


async def until(event: str, response: httpx.Response) -> AsyncIterator[str]:
    """The lines behind an event. Who drops them hangs up."""
    lines = response.aiter_lines()
    while await anext(lines) != f"event: {event}":
        pass
    return lines


async def test_a_condition_holds_until_the_verb_has_ended(served: Served) -> None:
    branch = await made(served, text="Once", name="desk")
    asked = ENDLESS | {"if_length": branch["length"]}
    async with served.http.stream("POST", "/v1/branches/desk/generate", json=asked) as response:
        lines = await until("token", response)
        for verb, body in (("rollback", {"length": 1}), ("extend", {"text": "x"}), ("fork", {"if_length": 5})):
            assert code(await served.http.post(f"/v1/branches/desk/{verb}", json=body)) == (409, "branch_busy")
        forked = await served.http.post("/v1/branches/desk/fork", json={})  # of what is there by now
        assert forked.json()["forks"][0]["length"] >= branch["length"]
        await anext(lines)


async def test_branches_of_a_lease_end_with_its_connection(served: Served) -> None:
    client = httpx.AsyncClient(base_url=served.url, timeout=PATIENCE)
    async with client, client.stream("GET", "/v1/leases/mine") as lease:
        first = await until("begin", lease)
        async with client.stream("GET", "/v1/leases/mine") as other:
            await until("begin", other)
        await made(served, text="Once", name="trunk", lease="mine")
        await made(served, text="Once", name="free")
        forked = await client.post("/v1/branches/trunk/fork", json={"names": ["kid"]})
        assert forked.json()["forks"][0]["lease"] == "mine"
        await client.post("/v1/branches/free/fork", json={"names": ["leased"], "lease": "mine"})
        headers = {"idempotency-key": "once"}  # goes on when its client hangs up
        async with client.stream("POST", "/v1/branches/kid/generate", json=ENDLESS, headers=headers) as response:
            await until("token", response)
        assert len(served.server.branches) == 4
        assert served.server.admission.running == 1
        await anext(first)
    await served.until(lambda: len(served.server.branches) == 1)
    assert [held.id for held in served.server.branches.named()] == ["free"]
    await served.until_idle()  # what ran has ended
    await served.until(lambda: len(served.ctx.branches) == 1)


async def test_branches_of_a_silent_lease_are_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(branches, "monotonic", lambda: now[0])
    async with serve(lease_seconds=10, branch_seconds=600) as served:
        for name in ("one", "two"):
            await made(served, text=name, name=name, lease="mine")
        await made(served, text="three", name="three")
        now[0] = 9
        assert (await served.http.get("/v1/branches/one")).status_code == 200  # speaks for the whole lease
        now[0] = 18
        assert (await served.http.get("/v1/branches/two")).status_code == 200
        now[0] = 29
        gone = await served.http.get("/v1/branches/one")
        assert code(gone) == (404, "branch_closed")
        assert [held.id for held in served.server.branches.named()] == ["three"]
        await made(served, text="four", name="four", lease="mine")
        async with served.http.stream("GET", "/v1/leases/mine") as lease:
            lines = await until("begin", lease)
            now[0] = 100
            assert (await served.http.get("/v1/branches/four")).status_code == 200
            now[0] = 701  # a machine that vanished has a connection, too
            assert code(await served.http.get("/v1/branches/four")) == (404, "branch_closed")
            await anext(lines)


async def test_a_lease_does_not_keep_a_server_from_ending(served: Served) -> None:
    async with served.http.stream("GET", "/v1/leases/mine") as lease:
        lines = await until("begin", lease)
        await served.server.admission.drain(0)
        assert [line async for line in lines][-2:]  # it ends


async def test_a_name_of_a_lease_that_cannot_be(served: Served) -> None:
    assert (await served.http.get("/v1/leases/br_x")).status_code == 400
