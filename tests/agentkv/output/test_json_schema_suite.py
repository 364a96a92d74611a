"""The JSON Schema Test Suite (https://github.com/json-schema-org/JSON-Schema-Test-Suite), where a copy of it lies.

    JSON_SCHEMA_TEST_SUITE=path/of/the/suite pytest tests/agentkv/output/test_json_schema_suite.py

The sdist of `jsonschema` carries it as `json`. Our own cases, in test_json_schema.py, need no copy.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv

from .matching import accepts

SUITE = os.environ.get("JSON_SCHEMA_TEST_SUITE")


def held(schema: Any) -> kv.JsonSchema | None:
    """The schema as an output; None where it is refused."""
    try:
        return kv.JsonSchema({k: v for k, v in schema.items() if k != "$schema"} if schema is not True else True)
    except (kv.InvalidInput, AttributeError):  # False has no items
        return None


@pytest.mark.skipif(SUITE is None, reason="JSON_SCHEMA_TEST_SUITE names no copy of the suite")
def test_what_the_suite_calls_invalid_is_never_accepted() -> None:
    assert SUITE is not None
    wrong: list[str] = []
    accepted = valid = groups = 0
    for file in sorted(Path(SUITE, "tests", "draft2020-12").glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            output = held(group["schema"])
            if output is None:
                continue
            groups += 1
            for case in group["tests"]:
                may_come = accepts(output.grammar, json.dumps(case["data"], ensure_ascii=False))
                valid += case["valid"]
                accepted += may_come and case["valid"]
                if may_come and not case["valid"]:
                    wrong.append(f"{file.stem}: {group['description']}: {case['description']}")
    assert wrong == []
    assert groups > 150
    assert accepted > 0.9 * valid  # the others: keys in another order, 1.0 for 1, formats that are only annotations
