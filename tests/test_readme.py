"""The README's examples run as they stand."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
AGENTS, SPECULATION = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_example_answers(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(AGENTS, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    answers = [f"It is {len(city)} degrees and rainy in {city}." for city in ("Oslo", "Tolvik", "Brasno")]
    assert printed.startswith(f"{answers} in ")  # the tool was called, and its result was read


def test_the_example_of_speculation_runs() -> None:
    class Mine:
        def propose(self, branch: int, tokens: Any, limit: int) -> kv.spec.Draft:
            asked.append(branch)
            return kv.spec.Draft.chain(tokens[:limit])

    asked: list[int] = []
    scope: dict[str, Any] = {"kv": kv, "mine": Mine()}
    source = "async def example():\n" + textwrap.indent(SPECULATION, "    ") + "    return a, b, c\n"
    exec(compile(source, "README.md", "exec"), scope)
    a, b, c = anyio.run(scope["example"])
    assert a.tokens == b.tokens == c.tokens
    assert set(asked) == {c.id}
