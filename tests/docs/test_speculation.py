"""A strategy that one call is given is asked about its branch alone."""

from __future__ import annotations

import textwrap
from typing import Any

import anyio

import agentkv as kv
from tests.docs.blocks import DOCS, blocks_of

(BLOCK,) = (block for block in blocks_of(DOCS / "speculation.md") if "speculative=mine" in block.code)


def test_a_strategy_of_one_call_is_asked_about_its_branch() -> None:
    class Mine:
        def propose(self, branch: int, tokens: Any, limit: int) -> kv.spec.Draft:
            asked.append(branch)
            return kv.spec.Draft.chain(tokens[:limit])

    asked: list[int] = []
    scope: dict[str, Any] = {"kv": kv, "Phrases": lambda _: Mine(), "call": None}
    source = "async def example():\n" + textwrap.indent(BLOCK.code, "    ") + "    return a, b, c\n"
    exec(compile(source, BLOCK.where, "exec"), scope)
    a, b, c = anyio.run(scope["example"])
    assert a.tokens == b.tokens == c.tokens
    assert set(asked) == {c.id}
