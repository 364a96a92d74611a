"""The page on nano says what it knows: each row of its table is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import agentkv as kv
from examples.nano.tools import SYSTEM, TOOLS

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs" / "nano.md"
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text().splitlines()
    if re.match(r"\| `\w+` \|", line)
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_all_tools_are_there() -> None:
    assert {row[0] for row in ROWS} == set(TOOLS)
    for name, arguments, *_ in ROWS:
        assert arguments.split(", ") == list(TOOLS[name].definition()["function"]["parameters"]["properties"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
async def test_a_row_is_so(row: list[str]) -> None:
    name, _, question, result, answer = row
    definition = TOOLS[name].definition()["function"]
    tool = kv.Tool(name, definition["description"], definition["parameters"], lambda **_: json.loads(result))
    agent = kv.Agent(SYSTEM, tools=[tool])
    async with kv.Context.open(kv.models.nano(), capacity=1024, threads=1) as ctx:
        run = await agent.run(await agent.trunk(ctx), question)
    assert [call.name for call in run.calls] == [name]
    assert run.output == answer
