"""Random schemas: whatever a grammar lets through, its schema describes."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

import agentkv as kv

from .matching import walk
from .random_schemas import random_schema


def exact(text: str) -> Any:
    """JSON with decimals as they are written: `multipleOf` is wrong in binary."""
    return json.loads(text, parse_float=lambda number: float(number) if "e" in number.lower() else Decimal(number))


def faults(schema: dict[str, Any], text: str) -> list[str]:
    """What `jsonschema` has against a text."""
    validator = jsonschema.Draft202012Validator(exact(json.dumps(schema)))
    return [error.message for error in validator.iter_errors(exact(text))]


def check(count: int) -> None:
    ended = 0
    for seed in range(count):
        rng = random.Random(seed)
        schema = random_schema(rng)
        text = walk(kv.JsonSchema(schema).grammar, rng)
        if text is not None:
            ended += 1
            assert faults(schema, text) == [], (seed, schema, text)
    assert ended > 0.9 * count


def test_what_ends_is_of_its_schema() -> None:
    check(150)


@pytest.mark.soak
def test_what_ends_is_of_its_schema_in_large_counts(soak_count: int) -> None:
    check(soak_count)
