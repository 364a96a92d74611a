"""Random tools whose schemas are odd, of which some no grammar holds: an agent and a server work with them as with any.

To add a case, write a row of `UNHELD` or `MALFORMED` in `odd_schemas`: it is put into schemas at random.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

import agentkv as kv
from agentkv.output._tool_schemas import held_tools
from agentkv.serve import application
from tests.agentkv.output.odd_schemas import MALFORMED, UNHELD, odd_schema
from tests.agentkv.serve.conftest import SETTINGS, serving_of

from .protocols import WEATHER, ask

pytestmark = pytest.mark.anyio

ASKED = "What is the weather in Oslo?"
CLOCK = kv.Tool("clock", "The time.", {"type": "object", "properties": {}}, lambda: "noon")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def faults(schema: dict[str, Any], value: Any) -> list[str] | None:
    """What `jsonschema` has against a value; None where it cannot say, because the schema is none."""
    named = {key: schema[key] for key in ("$schema",) if isinstance(schema.get(key), str)}
    draft = validator_for(named, default=Draft202012Validator)
    try:
        draft.check_schema(schema)
        return [error.message for error in draft(schema).iter_errors(value)]
    except (SchemaError, RecursionError):
        return None
    except Exception as error:
        if type(error).__name__ in ("_WrappedReferencingError", "error"):  # references that lead nowhere, and patterns
            return None
        raise


def seeded(seed: int) -> dict[str, Any]:
    return odd_schema(random.Random(seed))


async def calls_of(agent: kv.Agent[None, str], branch: kv.Branch) -> Sequence[kv.CallRecord]:
    try:
        return (await agent.run(branch, ASKED)).calls
    except (kv.LimitReached, kv.ContextFull) as error:
        return error.run.calls if error.run else ()


async def check_agent(seeds: Sequence[int]) -> None:
    """What a function is called with is of its schema, and what is not is told to the model."""
    ran = told = 0
    async with kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx:
        for seed in seeds:
            schema, given = {**seeded(seed), "type": "object"}, list[dict[str, Any]]()
            tool = kv.Tool("weather", "The weather.", schema, lambda given=given, **each: given.append(each))
            sampling = kv.Sampling(temperature=0.7, seed=seed)
            agent = kv.Agent("You are Nano.", tools=[tool, CLOCK], max_rounds=2, max_tokens=160, sampling=sampling)
            branch = await agent.trunk(ctx)
            calls = await calls_of(agent, branch)
            await branch.close()
            for call in calls:
                wrong = faults(schema, call.arguments) if call.name == "weather" else []
                if call.status == "done":
                    ran += 1
                    assert not wrong, (seed, schema, call)
                elif call.status == "invalid":
                    told += 1
                    assert wrong != [], (seed, schema, call)
                    assert "bad arguments" in call.content
            assert len(given) == sum(call.name == "weather" and call.ran for call in calls)
    assert ran > len(seeds) / 4, (ran, told)


async def check_server(seeds: Sequence[int]) -> None:
    """Calls of each tool are made, and held to what a grammar can hold of its schema."""
    called = 0
    async with kv.Context.open(kv.models.nano(), capacity=4096, threads=1) as ctx:
        transport = httpx.ASGITransport(application(ctx, SETTINGS))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            for seed in seeds:
                schema = seeded(seed)
                odd = {"name": "weather", "description": "The weather in a city.", "parameters": schema}
                body = {
                    "model": "nano",
                    "messages": [{"role": "user", "content": ASKED}],
                    "tools": [{"type": "function", "function": odd}, CLOCK.definition],
                    "tool_choice": {"type": "function", "function": {"name": "weather"}},
                    "max_tokens": 160,
                    "seed": seed,
                    "temperature": 0.7,
                }
                answer = await http.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, (seed, schema, answer.text)
                (choice,) = answer.json()["choices"]
                (held,) = held_tools(ctx._core.chat.format, [odd], lambda *_: None)
                for call in choice["message"].get("tool_calls", ()):
                    called += 1
                    arguments = json.loads(call["function"]["arguments"])
                    assert isinstance(arguments, dict)
                    assert not faults(held["parameters"], arguments), (seed, schema, arguments)  # type: ignore[arg-type]
    assert called > len(seeds) / 4, called


ODD = [
    kv.Tool(f"odd_{number}", "", {"type": "object", "properties": {"a": part, "b": {"type": "string"}}}, lambda **_: 1)
    for number, part in enumerate((*UNHELD, *MALFORMED))
]
UNIQUE = kv.Tool(
    "unique",
    "",
    {"type": "object", "properties": {"of": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}},
    lambda of: sum(of),
)


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
async def test_odd_tools_stop_no_request(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nor each other; and what is not held is said once for each tool."""
    tools = [WEATHER, *(tool.definition for tool in ODD)]
    script = [kv.testing.call("weather", city="Oslo"), kv.testing.call("odd_1", b="x")]
    async with kv.testing.replies(lambda _: script, capacity=16384, threads=1) as ctx, serving_of(ctx) as served:
        with caplog.at_level(logging.WARNING, "agentkv"):
            for _ in range(2):
                answer = await ask(served, protocol, False, [{"role": "user", "content": ASKED}], tools=tools)
                assert answer.error == ""
                assert [call[1] for call in answer.calls] == ["weather", "odd_1"]
    said = [record.getMessage() for record in caplog.records if "schemas of tools" in record.getMessage()]
    assert len(said) == len({*said})
    assert sum("uniqueItems" in each for each in said) == 1


async def test_the_model_reads_what_no_grammar_held_it_to() -> None:
    script = [[kv.testing.call("unique", of=[1, 1])], [kv.testing.call("unique", of=[1, 2])], "3"]
    agent = kv.Agent("You are Nano.", tools=[UNIQUE, CLOCK, *ODD])
    async with kv.testing.replies(script, capacity=16384, threads=1) as ctx:
        run = await agent.run(await agent.trunk(ctx), "Sum?")
        first, second = run.calls
        assert (first.status, first.ran, second.status, second.result) == ("invalid", False, "done", 3)
        assert "bad arguments: of: [1, 1] has non-unique elements" in first.content
        assert first.content in [message.content for message in run.messages]
        assert run.output == "3"


async def test_an_agent_takes_any_tool() -> None:
    await check_agent(range(40))


async def test_a_server_takes_any_tool() -> None:
    await check_server(range(40))


@pytest.mark.soak
async def test_an_agent_takes_any_tool_in_large_counts(soak_count: int) -> None:
    await check_agent(range(1000, 1000 + soak_count))


@pytest.mark.soak
async def test_a_server_takes_any_tool_in_large_counts(soak_count: int) -> None:
    await check_server(range(1000, 1000 + soak_count))
