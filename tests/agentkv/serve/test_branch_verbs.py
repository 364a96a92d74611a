"""`/v1/branches` by plain HTTP, as another language has it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import anyio
import httpx
import pytest

import agentkv as kv
from agentkv.serve.branches import registry as branches

from .conftest import SETTINGS, Serve, Served, serving

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


async def test_forgotten_branches_make_room_for_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where branches that wait keep their cells."""
    now = [0.0]
    monkeypatch.setattr(branches, "monotonic", lambda: now[0])
    async with serving(replace(SETTINGS, branch_seconds=10), capacity=128, offload=None) as served:
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


def told(generation: kv.Generation) -> dict[str, Any]:
    """As the wire has it."""
    return {
        "text": generation.text,
        "tokens": generation.tokens,
        "logprobs": generation.logprobs,
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "top_logprobs": [[top._asdict() for top in place] for place in generation.top_logprobs],
    }


class There:
    """A branch of the server, whose answers are compared with those of the SDK in this process."""

    def __init__(self, served: Served, branch: kv.Branch, name: str) -> None:
        self.served, self.branch, self.name = served, branch, name

    async def post(self, verb: str, **body: Any) -> Any:
        response = await self.served.http.post(f"/v1/branches/{self.name}/{verb}?whole=true", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def check(self, answer: Any) -> Any:
        assert answer["tokens"] == self.branch.tokens
        assert answer["text"] == self.branch.text
        assert answer["length"] == len(self.branch)
        assert answer["messages"] == json.loads(json.dumps([asdict(message) for message in self.branch.messages]))
        assert answer["marks"] == {name: mark.length for name, mark in self.branch.marks.items()}
        return answer

    async def generate(self, output: Any = None, said: Any = None, **how: Any) -> None:
        here = await self.branch.generate(output=str if output is None else output, **how)
        if "sampling" in how:
            how["sampling"] = how["sampling"].model_dump(exclude_none=True)
        answer = self.check(await self.post("generate", **how, **({} if said is None else {"output": said})))
        generation = answer["generation"]
        assert generation.items() >= told(here).items()
        if said is not None:
            value = here.output if here.finish_reason in ("eos", "stop") else None
            assert generation["output"] == value


OUTPUTS: list[tuple[Any, Any]] = [
    (kv.Regex("[0-9]{3}"), {"type": "regex", "pattern": "[0-9]{3}"}),
    (kv.JsonSchema({"type": "boolean"}), {"type": "json_schema", "schema": {"type": "boolean"}}),
    (kv.Grammar('start: "a" | "b"'), {"type": "grammar", "lark": 'start: "a" | "b"'}),
]


async def test_a_story_is_the_same_in_this_process(served: Served) -> None:
    async with kv.Context.open(kv.models.nano(), threads=1) as ctx:
        who: Any = WHO["messages"]
        trunk = There(served, await ctx.branch(who), (await made(served, **WHO, name="trunk"))["id"])
        trunk.branch.mark("start")
        trunk.check(await trunk.post("mark", name="start"))
        await trunk.generate(max_tokens=40, top_logprobs=2)
        more: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
        extended = await trunk.branch.extend(more)
        answer = trunk.check(await trunk.post("extend", messages=more))
        assert answer["extended"] == asdict(extended)
        await trunk.post("fork", names=["first", "second"])
        first, second = [
            There(served, fork, name)
            for fork, name in zip(await trunk.branch.fork(2), ("first", "second"), strict=True)
        ]
        await first.generate(max_tokens=9, stop=["e"])
        await second.generate(max_tokens=30, sampling=kv.Sampling(temperature=0.7, seed=3))  # streams of forks
        await trunk.branch.adopt(first.branch)
        trunk.check(await trunk.post("adopt", other="first"))
        choice = await trunk.branch.select(["yes", "no", "perhaps"])
        assert (await trunk.post("select", choices=["yes", "no", "perhaps"]))["choice"] == {
            "text": choice.text,
            "index": choice.index,
            "logprob": choice.logprob,
            "logprobs": choice.logprobs,
        }
        await trunk.branch.rollback(trunk.branch.marks["start"])
        trunk.check(await trunk.post("rollback", name="start"))
        for output, said in OUTPUTS:
            await trunk.generate(output, said, max_tokens=60)
            await trunk.branch.rollback(27)
            trunk.check(await trunk.post("rollback", length=27))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_dies_frees_the_branch(served: Served, stream: bool) -> None:
    branch = await made(served, text="Once")
    asked = {
        "max_tokens": 7000,
        "stream": stream,
        "sampling": {"temperature": 1, "seed": 5},
        "output": {"type": "regex", "pattern": "[a-z ]{7000}"},
    }
    async with httpx.AsyncClient(base_url=served.url) as http, anyio.create_task_group() as group:
        group.start_soon(lambda: http.post(f"/v1/branches/{branch['id']}/generate", json=asked))
        await served.until(lambda: served.ctx.stats.generated > 3)
        group.cancel_scope.cancel()
    await served.until(lambda: not served.server.admission.running)
    made_of_it = served.ctx.stats.generated
    [held] = served.ctx.branches
    assert branch["length"] < len(held) <= branch["length"] + made_of_it
    steps = served.ctx.stats.steps
    await held.extend("x")
    assert served.ctx.stats.steps == steps + 1  # nothing else ran


async def test_branches_are_bounded(serve: Serve) -> None:
    async with serve(most_branches=2) as served:
        branch = await made(served, text="Once")
        for path, body in ((f"/{branch['id']}/fork", {"n": 2}), (f"/{branch['id']}/fork", {"names": ["a", "b"]})):
            full = await served.http.post(f"/v1/branches{path}", json=body)
            assert (full.status_code, full.json()["error"]["code"]) == (429, "too_many_branches")
        await served.http.post(f"/v1/branches/{branch['id']}/fork", json={"names": ["a"]})
        assert (await served.http.post("/v1/branches", json={"text": "Twice"})).status_code == 429
        await served.http.delete("/v1/branches/a")
        await made(served, text="Twice")
        assert len(served.ctx.branches) == 2


async def test_a_stream_begins_with_the_length_before_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps go on while that is told."""
    branch = await made(served, **WHO)
    enter = kv.TokenStream.__aenter__

    async def late(stream: kv.TokenStream) -> kv.TokenStream:
        entered = await enter(stream)
        await served.until(lambda: any(len(each) > branch["length"] for each in served.ctx.branches))
        return entered

    monkeypatch.setattr(kv.TokenStream, "__aenter__", late)
    body = {"max_tokens": 5, "stream": True}
    said = (await served.http.post(f"/v1/branches/{branch['id']}/generate", json=body)).text
    assert said.startswith(f'event: begin\ndata: {{"length": {branch["length"]}}}')
