"""The calculator, and tools of files."""

from __future__ import annotations

from typing import Any

import pytest

import agentkv as kv
from agentkv.terminal.tools import calculate


@pytest.mark.parametrize(
    ("expression", "value"), [("7 * 8", 56), ("(1 + 2) / 4", 0.75), ("-3 % 2", 1), ("1e3", 1000), ("2 + 2.0", 4)]
)
def test_numbers_are_computed(expression: str, value: Any) -> None:
    assert calculate(expression) == {"result": value}


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "a", "__import__('os')", "9 ** 9", "1 / 0", "1" * 300, "(" * 150 + ")" * 150, "'a' * 9", "1e308 * 10"],
)
def test_anything_else_is_told_to_the_model(expression: str) -> None:
    with pytest.raises(kv.Retry):
        calculate(expression)
