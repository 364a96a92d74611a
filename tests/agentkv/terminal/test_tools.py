"""The calculator, and tools of files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv.terminal.tools import calculate, tools_of


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


ENDING = """
import sys
import agentkv as kv

@kv.tool(approve=True)
def leaves(code: int) -> str:
    "leaves"
    sys.exit(code)

@kv.tool
async def stops() -> str:
    "stops"
    raise KeyboardInterrupt
"""


def test_tools_that_end_the_program_fail_alone(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(ENDING)
    leaves, stops = tools_of(tmp_path / "tools.py")
    assert leaves.approve
    with pytest.raises(RuntimeError, match="SystemExit"):
        leaves.function(3)
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        asyncio.run(stops.function())


def test_a_file_that_ends_the_program_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("import sys; sys.exit(3)")
    with pytest.raises(kv.InvalidInput, match="SystemExit"):
        tools_of(tmp_path / "tools.py")
