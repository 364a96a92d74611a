"""Values that a call does not take: one row per mistake that a newcomer makes, and what the error says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agentkv as kv
from agentkv import trace
from agentkv._chat.messages import checked_tools

HI = [{"role": "user", "content": "Hi."}]


@pytest.fixture(scope="module")
def ctx() -> Iterator[kv.sync.Context]:
    with kv.Context.open("nano", capacity=512).sync() as ctx:
        yield ctx


def recorded(ctx: kv.sync.Context, path: Any) -> None:
    ctx.wait(trace.record(ctx.awaited, path).__aenter__())


ROWS: list[tuple[str, Callable[[Any], Any], str]] = [
    ("no model", lambda ctx: kv.Context.open(None).sync().__enter__(), "or GGUF file, or the name of a model"),
    ("a policy's class", lambda ctx: ctx.branch(HI, overflow=kv.overflow.DropOldest), "call it: DropOldest(...)"),
    ("sampling's class", lambda ctx: ctx.branch("x").generate(sampling=kv.Sampling), "call it: Sampling(...)"),
    ("an output's class", lambda ctx: ctx.branch("x").generate(output=kv.Regex), "output is the class Regex"),
    ("a strategy's class", lambda ctx: ctx.branch("x").generate(speculative=kv.spec.PromptLookup), "call it"),
    ("a grammar", lambda ctx: ctx.branch("x").generate(output=kv.Grammar("=")), "Grammar(lark='=') is no grammar"),
    ("a key of a message", lambda ctx: ctx.branch([{"rol": "user", "content": "x"}]), "has the keys 'rol', 'content'"),
    ("an empty message", lambda ctx: ctx.branch([{}]), "has the keys (none), but it needs a 'role'"),
    ("bytes to change", lambda ctx: ctx.branch(bytearray(b"x")), "bytearray(b'x'); make it text: bytes(...)"),
    ("a trace that is no path", lambda ctx: recorded(ctx, 3), "must be the path of a file"),
    ("no fork", lambda ctx: ctx.branch("x").fork(0), "n is 0, but it must be at least 1"),
    ("a negative length", lambda ctx: ctx.branch("x").rollback(-1), "is -1, but it must be at least 0"),
    ("a tool without a name", lambda ctx: ctx.branch(HI, tools=[{"description": "x"}]), "tool 0 has no name"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_wrong_value_is_told_what_to_do(ctx: kv.sync.Context, call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(kv.InvalidInput, match=re.escape(said)):
        call(ctx)


def test_many_forks_are_told_how_many_there_may_be(ctx: kv.sync.Context) -> None:
    for count in (300, 2**40, 2**80):
        with pytest.raises(kv.TooManyBranches, match="of at most 256 are live"):
            ctx.branch("x").fork(count)


@pytest.mark.parametrize("more", [{}, {"description": "Looks.", "parameters": {}}, {"parameters": None}])
def test_a_definition_needs_no_parameters(ctx: kv.sync.Context, more: dict[str, Any]) -> None:
    tool = {"name": "look", **more}
    whole = {"name": "look", "description": "", **more, "parameters": {"type": "object", "properties": {}}}
    wanted = ctx.branch(HI, tools=[{"type": "function", "function": whole}]).tokens
    assert ctx.branch(HI, tools=[{"type": "function", "function": tool}]).tokens == wanted


SCHEMA = {"properties": {"city": {"type": "string"}}, "type": "object", "required": ["city"]}


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "look", "description": "Looks.", "parameters": SCHEMA},
        {"parameters": SCHEMA, "strict": True, "description": "Looks.", "name": "look"},
    ],
)
def test_a_whole_definition_keeps_its_own_order_which_templates_print(tool: dict[str, Any]) -> None:
    for definition in (tool, {"type": "function", "function": tool}):
        assert json.dumps(checked_tools([definition])) == json.dumps([definition])
