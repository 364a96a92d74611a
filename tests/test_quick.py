"""`make quick` finds the tests that lie nearest to a change."""

from __future__ import annotations

import pytest

from tests.quick import ROOT, nearest

CHANGES = [
    ("agentkv/output/json_schema.py", "tests/agentkv/output/test_json_schema.py"),
    ("agentkv/serve/http/openapi.py", "tests/agentkv/serve/test_openapi.py"),
    ("runtime/agentkv_runtime/gguf/tokenizer.py", "tests/runtime/sources/test_gguf.py"),
    ("tests/limits.py", "tests/test_limits.py"),
    ("cpp/core/cells.h", "tests/integration/test_bits.py"),
    ("docs/agents.md", "tests/docs/test_pages.py"),
]


@pytest.mark.parametrize(("changed", "test"), CHANGES)
def test_the_tests_of_a_change_come_early(changed: str, test: str) -> None:
    assert test in nearest([ROOT / changed])[:24]


def test_what_nothing_imports_breaks_nothing() -> None:
    assert nearest([ROOT / "LICENSE"]) == []
