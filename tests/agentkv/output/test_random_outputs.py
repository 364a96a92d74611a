"""Outputs of random schemas, by models that know nothing of them: what is complete is of its schema."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest

import agentkv as kv

from .random_schemas import random_schema

AT_ONCE = 8
STRATEGIES = [
    None,
    kv.spec.PromptLookup(),
    kv.spec.Suffix(adaptive=False),
    kv.spec.Mixed(kv.spec.Suffix(adaptive=False), kv.spec.PromptLookup(adaptive=False)),
]


def exact(text: str) -> Any:
    """JSON with decimals as they are written: `multipleOf` is wrong in binary."""
    return json.loads(text, parse_float=lambda number: float(number) if "e" in number.lower() else Decimal(number))


def faults(schema: dict[str, Any], text: str) -> list[str]:
    """What `jsonschema` has against a text."""
    validator = jsonschema.Draft202012Validator(exact(json.dumps(schema)))
    return [error.message for error in validator.iter_errors(exact(text))]


async def complete(model: Path, count: int) -> tuple[int, int]:
    """How many of `count` outputs were complete, and how many tokens all had. Each complete one is checked."""
    ended = tokens = 0

    async def one(trunk: kv.Branch, seed: int) -> None:
        nonlocal ended, tokens
        schema = random_schema(random.Random(seed))
        async with await trunk.fork() as branch:
            sampling = kv.Sampling(temperature=1.0, seed=seed)
            strategy = STRATEGIES[seed % len(STRATEGIES)]
            gen = await branch.generate(
                output=kv.JsonSchema(schema), max_tokens=300, sampling=sampling, speculative=strategy
            )
        tokens += len(gen.tokens)
        if gen.finish_reason == "length":
            return
        ended += 1
        assert gen.finish_reason in ("eos", "stop")
        assert gen.output == json.loads(gen.text)
        assert faults(schema, gen.text) == [], (seed, schema, gen.text)

    async with kv.Context.open(model, capacity=AT_ONCE * 512, threads=1) as ctx:
        trunk = await ctx.branch('A value, as JSON: {"name": "value", "x": [1, 2.5, null]}\n')
        for first in range(0, count, AT_ONCE):
            async with anyio.create_task_group() as group:
                for seed in range(first, min(first + AT_ONCE, count)):
                    group.start_soon(one, trunk, seed)
    return ended, tokens


@pytest.fixture(params=["random weights", "nano"])
def model(request: pytest.FixtureRequest, tiny_exported_folder: Callable[..., Path]) -> Path:
    """A model that knows no JSON, and nano."""
    return kv.models.nano() if request.param == "nano" else tiny_exported_folder("llama")


def test_complete_outputs_are_of_their_schemas(model: Path) -> None:
    ended, _ = anyio.run(complete, model, 40)
    assert ended >= 26


@pytest.mark.soak
def test_complete_outputs_are_of_their_schemas_in_large_counts(model: Path, soak_count: int) -> None:
    ended, tokens = anyio.run(complete, model, soak_count)
    print(f"{ended} of {soak_count} outputs were complete, with {tokens} tokens in all")
    assert ended >= 0.65 * soak_count
