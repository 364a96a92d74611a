"""`/v1/branches` by plain HTTP, as another language has it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentkv.serve import branches

from .conftest import Serve, Served, serving

pytestmark = pytest.mark.anyio

WHO = {"messages": [{"role": "user", "content": "Who are you?"}]}


async def made(served: Served, **given: Any) -> Any:
    response = await served.http.post("/v1/branches", json=given)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_conversation(served: Served) -> None:
    branch = await made(served, **WHO)
    path = f"/v1/branches/{branch['id']}"
    assert "tokens" not in branch
    marked = (await served.http.post(f"{path}/mark", json={"name": "asked"})).json()
    assert marked["marks"] == {"asked": branch["length"]}
    said = (await served.http.post(f"{path}/generate?whole=true", json={"max_tokens": 30})).json()
    assert said["generation"]["text"] == "I am Nano, your desk agent."
    assert said["messages"][-1]["content"] == said["generation"]["text"]
    forks = (await served.http.post(f"{path}/fork", json={"n": 2})).json()["forks"]
    assert {fork["parent"] for fork in forks} == {branch["id"]}
    await served.http.post(f"{path}/rollback", json={"name": "asked"})
    back = (await served.http.get(path)).json()
    assert back["length"] == branch["length"]
    adopted = await served.http.post(f"{path}/adopt", json={"other": forks[0]["id"]})
    assert adopted.json()["length"] == said["length"]
    for each in (branch, *forks):
        assert (await served.http.delete(f"/v1/branches/{each['id']}")).json()["deleted"]
    assert not served.ctx.branches


async def test_an_output_is_a_value(served: Served) -> None:
    branch = await made(served, **WHO)
    path = f"/v1/branches/{branch['id']}/generate"
    output = {"type": "json_schema", "schema": {"type": "boolean"}}
    generation = (await served.http.post(path, json={"output": output})).json()["generation"]
    assert generation["output"] in (True, False)
    output = {"type": "regex", "pattern": "[a-z]{50}"}
    generation = (await served.http.post(path, json={"output": output, "max_tokens": 2})).json()["generation"]
    assert (generation["output"], generation["output_error"]["code"]) == (None, "output_incomplete")


async def test_a_stream_of_tokens(served: Served) -> None:
    branch = await made(served, **WHO)
    asked = {"stream": True, "top_logprobs": 1, "sampling": {"temperature": 0, "logit_bias": {"3": -100}}}
    response = await served.http.post(f"/v1/branches/{branch['id']}/generate", json=asked)
    events = [event.split("\n") for event in response.text.strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in events]
    told = [json.loads(data.removeprefix("data: ")) for _, data in events]
    assert names == ["begin", *["token"] * (len(names) - 2), "generation"]
    assert told[0] == {"length": branch["length"]}
    generation = told[-1]["generation"]
    assert "".join(token["text"] for token in told[1:-1]) == generation["text"]
    assert told[-1]["length"] == branch["length"] + len(generation["tokens"])


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("extend", {}, 400),
        ("extend", {"text": "a", "tokens": [1]}, 400),
        ("extend", {"tokens": [10**30]}, 400),
        ("extend", {"tokens": [-1]}, 400),
        ("extend", {"messages": [{"role": "root", "content": "x"}]}, 400),
        ("fork", {"n": 0}, 400),
        ("fork", {"n": 10**9}, 400),
        ("rollback", {}, 400),
        ("rollback", {"length": 10**6}, 400),
        ("rollback", {"mark": "5:999999"}, 400),
        ("rollback", {"mark": "999999999:1"}, 400),
        ("rollback", {"mark": "-1:1"}, 400),
        ("rollback", {"name": "none"}, 400),
        ("mark", {"name": ""}, 400),
        ("adopt", {"other": "br_none"}, 404),
        ("select", {"choices": []}, 400),
        ("generate", {"beams": 4}, 400),
        ("generate", {"output": {"type": "regex"}}, 400),
        ("generate", {"output": {"type": "regex", "pattern": "("}}, 400),
        ("generate", {"output": {"type": "grammar", "lark": "?"}}, 400),
        ("generate", {"sampling": {"temperature": -1}}, 400),
        ("generate", {"sampling": {"logit_bias": {"x": 1}}}, 400),
        ("generate", {"sampling": {"logit_bias": {"5000": 1}}}, 400),
        ("generate?whole=no", {}, 400),
    ],
)
async def test_wrong_bodies_change_nothing(served: Served, verb: str, body: dict[str, Any], status: int) -> None:
    branch = await made(served, **WHO)
    before = (await served.http.get(f"/v1/branches/{branch['id']}")).json()
    response = await served.http.post(f"/v1/branches/{branch['id']}/{verb}", json=body)
    assert response.status_code == status, response.text
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert (await served.http.get(f"/v1/branches/{branch['id']}")).json() == before
    assert len(served.ctx.branches) == 1


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools", "tool 0 is dict"),
        ({"tools": [{"type": "function", "function": 5}]}, "tools", "tool 0 is dict"),
        ({"tools": [{"name": "f", "parameters": {"properties": -1}}]}, "tools", "the properties int -1"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "the content int 5"),
        ({"tokens": [1, 2**70], "messages": None}, "tokens", "at index 1 is not in the vocabulary"),
    ],
)
async def test_what_is_wrong_with_a_prompt_is_named(
    served: Served, body: dict[str, Any], param: str, told: str
) -> None:
    response = await served.http.post("/v1/branches", json={**WHO, **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert told in error["message"]
    assert not served.ctx.branches


async def test_options_of_generations_are_named(served: Served) -> None:
    branch = await made(served, **WHO)
    for body in ({"output": {"type": "json_schema", "schema": {"type": "wrong"}}}, {"sampling": {"temperature": -1}}):
        response = await served.http.post(f"/v1/branches/{branch['id']}/generate", json=body)
        assert response.json()["error"]["param"] == next(iter(body))


async def test_a_busy_branch_is_a_conflict(served: Served) -> None:
    branch = await made(served, text="Once")
    path = f"/v1/branches/{branch['id']}"
    output = {"type": "regex", "pattern": "[a-z ]{7000}"}
    asked = {"max_tokens": 7000, "stream": True, "output": output}
    async with served.http.stream("POST", f"{path}/generate", json=asked) as response:
        lines = response.aiter_lines()
        while await anext(lines) != "event: token":
            pass
        busy = await served.http.post(f"{path}/extend", json={"text": "x"})
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "branch_busy")
        stopped = await served.http.post(f"{path}/stop", json={"length": branch["length"] + 1})
        assert stopped.json()["length"] == branch["length"] + 1
        assert any('"code": "stopped"' in line for line in [line async for line in lines])


async def test_branches_that_were_forgotten_are_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(branches, "monotonic", lambda: now[0])
    async with serve(branch_seconds=10) as served:
        one, two = await made(served, text="One"), await made(served, text="Two")
        now[0] = 9
        assert (await served.http.get(f"/v1/branches/{one['id']}")).status_code == 200
        now[0] = 11
        assert (await served.http.get(f"/v1/branches/{one['id']}")).status_code == 200
        gone = await served.http.get(f"/v1/branches/{two['id']}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "branch_closed")
        assert len(served.ctx.branches) == 1


async def test_forgotten_branches_make_room_for_conversations(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(branches, "monotonic", lambda: now[0])
    async with serve(capacity=128, branch_seconds=10) as served:
        await made(served, tokens=[5] * 100)
        now[0] = 11
        asked: Any = [{"role": "user", "content": "Who are you? " * 5}]
        await served.openai.chat.completions.create(model="nano", messages=asked, max_tokens=8)
        assert not len(served.server.branches)


async def test_options_of_sampling_that_are_none(served: Served) -> None:
    path = f"/v1/branches/{(await made(served, **WHO))['id']}/generate"
    for wrong in ({"self": 1}, {"temp": 1}, {"logit_bias": {"000000000000005": 1}}, {"logit_bias": {"x": 1}}):
        refused = await served.http.post(path, json={"sampling": wrong, "max_tokens": 2})
        assert refused.status_code == 400, refused.text


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("chat/completions", "messages"),
        ("completions", "prompt"),
        ("responses", "input"),
        ("tokens", "tokens"),
        ("tokens/logits", "tokens"),
        ("branches", "text"),
    ],
)
async def test_what_can_never_fit_is_told_of_the_parameter_it_came_in(path: str, param: str) -> None:
    text = "word " * 900
    values = {"messages": [{"role": "user", "content": text}], "tokens": [5] * 900}
    body = {param: values.get(param, text)} | ({"model": "nano"} if param in ("messages", "prompt", "input") else {})
    async with serving(capacity=400) as served:
        response = await served.http.post(f"/v1/{path}", json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "context_full", param)
