"""Several models behind one server: which one answers, and how long each stays open."""

from __future__ import annotations

import json
import random
from typing import Any

import anyio
import httpx
import pytest

import agentkv as kv
from tests.agentkv.conftest import event_loop_goes_first
from tests.waiting import SOON, until

from .conftest import engine_held, serving
from .several import BODY, CHAT, HI, SMALL, Site, serving_several

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


BY_BODY: dict[str, dict[str, Any]] = {
    CHAT: BODY,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/messages": {"messages": HI, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": HI},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
    "/v1/branches": {"text": "Hi"},
    "/v1/tokens": {"tokens": [5], "max_tokens": 2},
    "/v1/tokens/prefill": {"tokens": [5]},
    "/v1/tokens/logits": {"tokens": [5]},
    "/v1/tokens/select": {"tokens": [5], "choices": [[6], [7]]},
}
BY_QUERY = ("/v1/tokens", "/v1/tokens/tokenizer", "/v1/branches")


async def test_the_body_or_the_query_names_the_model_and_each_is_opened_on_its_first_request() -> None:
    async with serving_several("abc") as site:
        assert await site.opened() == ""
        for number, (path, body) in enumerate(BY_BODY.items()):
            answer = await site.http.post(path, json={**body, "model": "b"})
            assert answer.status_code == 200, (path, answer.text)
            assert await site.opened() == ("b" if number < len(BY_BODY) else "")
        for path in BY_QUERY:
            assert (await site.http.get(path, params={"model": "b"})).status_code == 200
        assert (await site.http.post("/v1/tokens", json=BY_BODY["/v1/tokens"], params={"model": "b"})).is_success
        assert await site.opened() == "b"
        for path in BY_QUERY:  # without a name it is the first one's
            assert (await site.http.get(path)).status_code == 200
        assert await site.opened() == "ab"
        assert (await site.http.get("/v1/tokens", params={"model": "b"})).json()["names"] == ["b"]


@pytest.mark.parametrize("path", [*BY_BODY, *BY_QUERY])
async def test_an_unknown_model_is_told_by_name_and_opens_none(path: str) -> None:
    async with serving_several("ab") as site:
        if path in BY_BODY:
            answer = await site.http.post(path, json={**BY_BODY[path], "model": "d"})
        else:
            answer = await site.http.get(path, params={"model": "d"})
        assert (answer.status_code, await site.opened()) == (404, "")
        assert "there is no model 'd'; there is a, b" in answer.json()["error"]["message"]


async def test_a_list_says_which_are_open() -> None:
    async with serving_several("ab") as site:
        await site.ask("b")
        told = (await site.http.get("/v1/models")).json()["data"]
        assert [(each["id"], each["object"], each["open"]) for each in told] == [
            ("a", "model", False),
            ("b", "model", True),
        ]
        assert (await site.http.get("/v1/models/b")).json() == told[1]
        assert (await site.http.get("/v1/models/c")).status_code == 404


async def test_two_names_in_one_request_are_refused() -> None:
    async with serving_several("ab") as site:
        for params in ({"model": "b"}, {"model": ["a", "b"]}):
            answer = await site.http.post(CHAT, json={**BODY, "model": "a"}, params=params)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


async def test_names_of_others_are_the_first_ones_where_they_are_taken() -> None:
    async with serving_several("ab") as site:
        assert (await site.http.post("/v1/messages", json={**BY_BODY["/v1/messages"], "model": "claude-x"})).is_success
        assert await site.opened() == "a"
    async with serving_several("ab", strict=True) as site:
        refused = await site.http.post("/v1/messages", json={**BY_BODY["/v1/messages"], "model": "claude-x"})
        assert refused.status_code == 404
    async with serving_several("ab", any_name=True) as site:
        assert (await site.ask("whatever")).is_success
        assert await site.opened() == "a"


async def branch(site: Site, model: str, **more: Any) -> str:
    made = await site.http.post("/v1/branches", json={"text": "Hi", "model": model, **more})
    assert made.is_success, made.text
    return str(made.json()["id"])


async def test_ids_lead_to_the_model_that_knows_them() -> None:
    async with serving_several("abc") as site:
        await site.ask("a")
        held = await branch(site, "b")
        stored = (await site.http.post("/v1/responses", json={**BY_BODY["/v1/responses"], "model": "b"})).json()["id"]
        made = await site.http.post(f"/v1/branches/{held}/generate", json={"max_tokens": 2})
        assert made.is_success, made.text
        assert (await site.http.get(f"/v1/branches/{held}", params={"whole": "true"})).json()["tokens"]
        assert (await site.http.get(f"/v1/branches/{held}/snapshot")).is_success
        assert (await site.http.get(f"/v1/responses/{stored}")).json()["model"] == "b"
        assert (await site.http.delete(f"/v1/responses/{stored}")).is_success
        for path in (f"/v1/branches/{held}x", f"/v1/responses/{stored}"):
            assert (await site.http.get(path)).status_code == 404
        deleted = [
            await site.http.delete(f"/v1/branches/{held}", headers={"idempotency-key": "once"}) for _ in range(2)
        ]
        assert [each.json() for each in deleted] == [{"id": held, "object": "branch", "deleted": True}] * 2
        assert await site.opened() == "ab"


async def test_a_name_that_two_models_know_wants_the_model() -> None:
    async with serving_several("ab") as site:
        for model in "ab":
            await branch(site, model, name="mine")
        assert (await site.http.get("/v1/branches/mine")).json()["error"]["code"] == "ambiguous_model"
        assert (await site.http.delete("/v1/branches/mine", params={"model": "a"})).is_success
        assert (await site.http.get("/v1/branches/mine")).is_success


async def test_a_model_with_held_branches_is_in_use_and_one_with_kept_conversations_is_not() -> None:
    async with serving_several("abc", most=2) as site:
        held = await branch(site, "a")
        for model in "bcb":  # conversations are kept, and let go
            assert (await site.ask(model)).is_success
        assert await site.opened() == "ab"
        assert (await site.http.get(f"/v1/branches/{held}")).is_success
        await site.http.delete(f"/v1/branches/{held}")
        for model in "bc":
            await site.ask(model)
        assert await site.opened() == "bc"
        assert (await site.http.get(f"/v1/branches/{held}")).status_code == 404


async def test_a_lease_ends_with_its_connection_in_all_models() -> None:
    async with serving_several("ab") as site:
        async with site.http.stream("GET", "/v1/leases/mine") as lease:
            assert lease.status_code == 200
            held = [await branch(site, model, lease="mine") for model in "ab"]
            for each in held:
                assert (await site.http.get(f"/v1/branches/{each}")).is_success
        await until(lambda: not any(len(model.branches) for model in site.models.all))


async def test_a_stream_keeps_its_model_to_the_last_byte() -> None:
    asked = {**BODY, "model": "a", "max_tokens": 400, "stream": True, "logit_bias": {"0": -100, "1": -100, "2": -100}}
    async with serving_several("ab", most=1) as site, anyio.create_task_group() as tasks:
        with engine_held() as go:
            async with site.http.stream("POST", CHAT, json=asked) as stream:
                lines = stream.aiter_lines()
                assert (await anext(lines)).startswith("data: ")
                tasks.start_soon(site.ask, "b")
                await until(lambda: site.models.admission.waiting)
                assert await site.opened() == "a"
                go.set()
                assert [line async for line in lines][-2:] == ["data: [DONE]", ""]
        await until(lambda: site.models.all[1].server)
        async with site.http.stream("POST", CHAT, json=asked) as stream:  # and its client may leave
            await anext(stream.aiter_lines())
        assert (await site.ask("b")).is_success


async def test_whoever_waits_for_memory_may_be_late_leave_or_be_told_to_stop() -> None:
    async with serving_several("ab", most=1) as site:
        held = await branch(site, "a")
        late = await site.http.post(CHAT, json={**BODY, "model": "b"}, headers={"x-request-timeout": str(SOON)})
        assert (late.status_code, late.json()["error"]["code"]) == (408, "timeout")
        with anyio.move_on_after(SOON):
            await site.ask("b")
        await until(lambda: not site.models.admission.waiting)
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await site.ask("b"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: site.models.admission.waiting)
            await site.http.delete(f"/v1/branches/{held}")
        assert answers.pop().is_success
        async with anyio.create_task_group() as tasks:
            await branch(site, "b")
            tasks.start_soon(ask_a, site, answers)
            await until(lambda: site.models.admission.waiting)
            await site.models.admission.drain(0)
            await ask_a(site, answers)
        assert [(each.status_code, each.json()["error"]["code"]) for each in answers] == [(503, "stopping")] * 2


async def ask_a(site: Site, answers: list[httpx.Response]) -> None:
    answers.append(await site.ask("a"))


async def test_the_queue_for_memory_is_bounded() -> None:
    async with serving_several("ab", most=1, most_waiting=1) as site, anyio.create_task_group() as tasks:
        held = await branch(site, "a")
        tasks.start_soon(site.ask, "b")
        await until(lambda: site.models.admission.waiting)
        refused = await site.ask("b")
        assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
        assert (await site.ask("a")).is_success
        await site.http.delete(f"/v1/branches/{held}")


async def test_a_server_where_nobody_waits_opens_its_models() -> None:
    async with serving_several("ab", most_waiting=0) as site:
        assert [(await site.ask(model)).status_code for model in "ab"] == [200, 200]


async def test_a_model_that_is_idle_is_closed() -> None:
    async with serving_several("ab", idle=0) as site:
        held = await branch(site, "b")
        assert (await site.ask("a")).is_success
        await until(lambda: site.models.all[0].server is None)
        assert await site.opened() == "b"
        await site.http.delete(f"/v1/branches/{held}")
        await until(lambda: site.models.all[1].server is None)


async def test_a_model_that_cannot_be_opened_is_told_by_name(tmp_path: Any) -> None:
    async with serving_several("abc", own={"a": {"model": tmp_path}, "c": {"kv_dtype": "fp7"}}) as site:
        for model in "ac":
            failed = await site.ask(model)
            assert (failed.status_code, failed.json()["error"]["code"]) == (500, "model_failed")
            assert str(tmp_path) not in failed.text
        assert (await site.ask("b")).is_success


async def test_metrics_are_of_each_model_and_outlive_its_closing() -> None:
    async with serving_several("ab", most=1) as site:
        for model in "aba":
            await site.ask(model)
        text = (await site.http.get("/metrics")).text
    told = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    generated = {model: float(told[f'agentkv_generated_total{{model="{model}"}}']) for model in "ab"}
    assert generated["a"] == 2 * generated["b"] > 0
    assert (told['agentkv_model_open{model="a"}'], told['agentkv_model_open{model="b"}']) == ("1.0", "0.0")
    assert told['agentkv_model_opens_total{model="a"}'] == "2.0"
    assert told[f'agentkv_requests_total{{model="a",path="{CHAT}",status="200"}}'] == "2.0"


async def test_a_key_for_some_models_knows_no_others() -> None:
    keys = {"for-b": ["b"], "for-bc": ["b", "c"]}
    async with serving_several("abc", api_key="all", keys=keys) as site:
        for key, names in {"all": "abc", "for-b": "b", "for-bc": "bc"}.items():
            headers = {"x-api-key": key}
            listed = (await site.http.get("/v1/models", headers=headers)).json()["data"]
            assert [each["id"] for each in listed] == list(names)
            description = (await site.http.get("/openapi.json", headers=headers)).json()
            assert description["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == list(names)
            for model in "abc":
                answer = await site.http.post(CHAT, json={**BODY, "model": model}, headers=headers)
                assert answer.status_code == (200 if model in names else 404)
                if model not in names:
                    assert f"there is no model '{model}'; there is {', '.join(names)}" in answer.text
            assert (await site.http.get("/metrics", headers=headers)).status_code == (200 if key == "all" else 403)
        made = await site.http.post("/v1/branches", json={"model": "a"}, headers={"x-api-key": "all"})
        there = f"/v1/branches/{made.json()['id']}"
        assert (await site.http.get(there, headers={"x-api-key": "for-bc"})).status_code == 404
        assert (await site.http.get(there, headers={"x-api-key": "all"})).status_code == 200
        assert (await site.http.get("/v1/models")).status_code == 401


async def test_one_of_several_answers_as_a_single_one() -> None:
    several = serving_several("nx")
    async with serving(capacity=SMALL["capacity"]) as single, several as site, event_loop_goes_first():
        for path, body in BY_BODY.items():
            if path in ("/v1/responses", "/v1/messages", CHAT, "/v1/completions", "/v1/branches"):
                continue  # ids and times are in these
            one = await single.http.post(path, json={**body, "model": "nano"})
            other = await site.http.post(path, json={**body, "model": "n"})
            assert (one.status_code, one.content) == (other.status_code, other.content)


async def test_a_connected_context_is_of_the_model_that_it_names() -> None:
    async with serving_several("ab") as site:
        async with kv.Context.connect(site.url, model="b", backend="agentkv") as far:
            branch = await far.branch("Who are you?")
            made = await branch.generate(max_tokens=4, sampling=kv.Sampling(temperature=0))
            await branch.publish("mine")
            assert (await far.attach("mine")).tokens == branch.tokens
        assert await site.opened() == "b"
        with pytest.raises(kv.ModelError, match="there is no model 'd'; there is a, b"):
            async with kv.Context.connect(site.url, model="d", backend="agentkv"):
                pass
    async with kv.Context.open(**SMALL) as ctx:
        branch = await ctx.branch("Who are you?")
        assert (await branch.generate(max_tokens=4, sampling=kv.Sampling(temperature=0))).tokens == made.tokens


class Clients:
    """Clients that ask models at random, and leave at random."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site = site
        self._rng = random.Random(seed)
        self.answers: dict[str, str] = {}
        self.lost = 0

    async def work(self, requests: int) -> None:
        for _ in range(requests):
            word = self._rng.choice(["Oslo", "Rome", "price", "hello"])
            messages = [{"role": "user", "content": word}]
            body = {**BODY, "messages": messages, "model": self._rng.choice("abc")}
            await self._rng.choice([self._whole, self._whole, self._stream, self._leave])(word, body)

    async def _whole(self, word: str, body: dict[str, Any]) -> None:
        answer = await self._site.http.post(CHAT, json=body)
        self.lost += answer.status_code != 200
        text = answer.json()["choices"][0]["message"]["content"]
        assert self.answers.setdefault(word, text) == text

    async def _stream(self, word: str, body: dict[str, Any]) -> None:
        answer = await self._site.http.post(CHAT, json={**body, "stream": True})
        self.lost += not answer.text.endswith("data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
        text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        assert self.answers.setdefault(word, text) == text

    async def _leave(self, word: str, body: dict[str, Any]) -> None:
        with anyio.move_on_after(self._rng.random() * SOON):
            await self._site.http.post(CHAT, json={**body, "stream": self._rng.random() < 0.5})


async def test_many_clients_with_memory_for_two_of_three_lose_nothing() -> None:
    async with serving_several("abc", most=2) as site:
        clients = Clients(site, 1)
        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(clients.work, 6)
        assert clients.lost == 0
        await site.models.admission.idle()
        assert (site.models.admission.running, site.models.admission.waiting) == (0, 0)
        assert len(await site.opened()) <= 2
    async with kv.Context.open(**SMALL) as ctx:
        for word, text in clients.answers.items():
            branch = await ctx.branch([{"role": "user", "content": word}])
            made = await branch.generate(max_tokens=4, sampling=kv.Sampling(temperature=0))
            assert made.text == text
