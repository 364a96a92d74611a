"""LoRA adapters that a server offers as models of the same Context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import agentkv as kv
from agentkv.evaluation.serving import listening
from agentkv.serve import Settings
from agentkv.serve.app import application_of
from agentkv.serve.run import Several, models_of
from agentkv.serve.settings import ModelOptions
from tests.adapters import random_adapter
from tests.waiting import PATIENCE

from .several import BODY, HI, Site

pytestmark = pytest.mark.anyio
NAMES = ["base", "sql", "review"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def model(tiny_exported_folder: Callable[..., Path]) -> Path:
    return tiny_exported_folder("llama", quant="q8")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: random_adapter(model, root / name, seed=i) for i, name in enumerate(NAMES[1:])}


@asynccontextmanager
async def serving_adapters(
    model: Path, adapters: dict[str, Path], several: Several | None = None, how: Any = None, **settings: Any
) -> AsyncIterator[Site]:
    """Serves a model and its adapters, as `agentkv serve --adapter` does."""
    options = {"model": model, "capacity": 2048, "threads": 1, **(how or {})}
    given = {"base": ModelOptions(how=options, adapters=adapters)}
    served, pool = models_of(given, several, Settings(**{"names": ("base",), **settings}))
    async with AsyncExitStack() as stack:
        pool.start()
        stack.push_async_callback(pool.close)
        if several is None:
            context = await stack.enter_async_context(pool.use("base"))
            for each in served.all:
                await each.over(context)
        url = await stack.enter_async_context(listening(application_of(served)))
        http = httpx.AsyncClient(base_url=url.removesuffix("/v1"), timeout=PATIENCE)
        yield Site(served, await stack.enter_async_context(http), url)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"]).strip()


async def alone(model: Path, adapters: dict[str, Path], messages: Any = HI) -> dict[str, str]:
    """What each says in this process."""
    said = {}
    async with kv.Context.open(model, capacity=2048, threads=1) as ctx:
        for name in NAMES:
            adapter = await ctx.adapter(adapters[name]) if name in adapters else None
            branch = await ctx.branch(messages, adapter=adapter)
            await branch.generate(max_tokens=BODY["max_tokens"])
            said[name] = branch.messages[-1].content.strip()
    assert len(set(said.values())) == 3
    return said


async def test_they_are_models_by_their_names(model: Path, adapters: dict[str, Path]) -> None:
    said = await alone(model, adapters)
    async with serving_adapters(model, adapters) as site:
        told = (await site.http.get("/v1/models")).json()["data"]
        assert [(each["id"], each.get("parent"), each["open"]) for each in told] == [
            ("base", None, True),
            ("sql", "base", True),
            ("review", "base", True),
        ]
        assert (await site.http.get("/v1/models/sql")).json() == told[1]
        answers = {name: await site.ask(name) for name in NAMES}
        assert {name: text_of(answer) for name, answer in answers.items()} == said
        assert len({answer.json()["system_fingerprint"] for answer in answers.values()}) == 3
        unknown = await site.ask("other")
        assert unknown.status_code == 404
        assert "there is no model 'other'; there is base, sql, review" in unknown.text


async def test_the_parent_has_the_name_that_clients_know(model: Path, adapters: dict[str, Path]) -> None:
    async with serving_adapters(model, adapters, names=("desk", "alias")) as site:
        told = (await site.http.get("/v1/models")).json()["data"]
        assert [(each["id"], each.get("parent")) for each in told] == [
            ("desk", None),
            ("alias", None),
            ("sql", "desk"),
            ("review", "desk"),
        ]


async def test_requests_with_different_adapters_ride_in_one_forward(
    model: Path, adapters: dict[str, Path], forwards_wait: None
) -> None:
    async with serving_adapters(model, adapters) as site:
        await kv.gather(*[site.ask(name, max_tokens=48) for name in NAMES * 2])
        (context,) = {each.server.context for each in site.models.all if each.server is not None}
        assert max(step.branches for step in context.steps) > 2  # more than one of them has


async def test_a_conversation_stays_under_its_adapter_and_its_cells(model: Path, adapters: dict[str, Path]) -> None:
    async with serving_adapters(model, adapters) as site:
        first = text_of(await site.ask("sql"))
        messages = [*HI, {"role": "assistant", "content": first}, {"role": "user", "content": "And now?"}]
        goes_on, elsewhere = [await site.ask(name, messages=messages) for name in ("sql", "review")]
        cached = [each.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (goes_on, elsewhere)]
        assert cached[0] > 0 == cached[1]
        said = text_of(goes_on)
    async with kv.Context.open(model, capacity=2048, threads=1) as ctx:
        branch = await ctx.branch(HI, adapter=await ctx.adapter(adapters["sql"]))
        await branch.generate(max_tokens=BODY["max_tokens"])
        await branch.extend([{"role": "user", "content": "And now?"}])
        await branch.generate(max_tokens=BODY["max_tokens"])
        assert branch.messages[-1].content.strip() == said


async def test_branches_and_clients_of_tokens_are_under_the_adapter(model: Path, adapters: dict[str, Path]) -> None:
    prompt = list(range(20, 60))
    async with serving_adapters(model, adapters) as site:
        made = await site.http.post("/v1/branches", json={"tokens": prompt, "model": "sql", "name": "mine"})
        assert made.status_code == 200, made.text
        wrote = await site.http.post("/v1/branches/mine/generate", json={"max_tokens": 6, "stream": False})
        assert wrote.status_code == 200, wrote.text
        facts = [(await site.http.get("/v1/tokens", params={"model": name})).json() for name in NAMES]
        assert len({each["fingerprint"] for each in facts}) == 3
        async with kv.Context.connect(site.url, model="sql", backend="agentkv") as there:
            branch = await there.branch(prompt)
            tokens = (await branch.generate(max_tokens=6)).tokens
            await branch.publish("sent")
            again = await there.attach("sent")
            more = (await again.generate(max_tokens=6)).tokens
    async with kv.Context.open(model, capacity=2048, threads=1) as ctx:
        branch = await ctx.branch(prompt, adapter=await ctx.adapter(adapters["sql"]))
        generation = await branch.generate(max_tokens=6)
        assert (generation.tokens, (await branch.generate(max_tokens=6)).tokens) == (tokens, more)
    assert wrote.json()["generation"]["tokens"] == tokens


async def test_prompts_under_adapters_are_not_in_the_prefix_cache(
    model: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    long = [{"role": "user", "content": "so it goes on and on " * 20}]
    said = await alone(model, adapters, long)
    for _ in range(2):
        async with serving_adapters(model, adapters, how={"prefix_cache": tmp_path}) as site:
            for _ in range(2):
                assert {name: text_of(await site.ask(name, messages=long)) for name in NAMES} == said


async def test_a_key_is_for_the_names_that_it_has(model: Path, adapters: dict[str, Path]) -> None:
    async with serving_adapters(model, adapters, keys={"k": ["sql"]}, api_key="all") as site:
        site.http.headers["authorization"] = "Bearer k"
        assert [(await site.ask(name)).status_code for name in NAMES] == [404, 200, 404]
        (told,) = (await site.http.get("/v1/models")).json()["data"]
        assert (told["id"], told.get("parent")) == ("sql", None)


async def test_adapters_of_several_models_are_loaded_with_theirs(model: Path, adapters: dict[str, Path]) -> None:
    said = await alone(model, adapters)
    async with serving_adapters(model, adapters, Several(None, None)) as site:
        assert await site.opened() == ""
        for _ in range(2):
            for name in ("review", "base", "sql"):
                assert text_of(await site.ask(name)) == said[name]
            site.models.let_go("base")
            assert await site.opened() == ""
        metrics = (await site.http.get("/metrics")).text
        assert metrics.count("agentkv_steps_total{") == 1  # they have one Context
        assert 'agentkv_conversations_kept{model="sql"}' in metrics


async def test_an_adapter_that_does_not_fit_is_named(model: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    wrong = {**adapters, "broken": tmp_path / "none"}
    with pytest.raises(kv.AdapterError, match=r"adapter 'broken': .*no adapter"):
        async with serving_adapters(model, wrong):
            pass
    async with serving_adapters(model, wrong, Several(None, None)) as site:
        answer = await site.ask("broken")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_failed")
        assert "'broken' cannot be opened" in answer.text
        assert str(tmp_path) not in answer.text
        assert (await site.ask("sql")).status_code == 200
