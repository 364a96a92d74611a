"""What nano generates is read as a message: calls with ids, and the tools' results in their place."""

from __future__ import annotations

from typing import Any

import pytest
from agentkv_runtime.formats.families.hermes import NANO
from agentkv_runtime.formats.parsed import TextDelta

import agentkv as kv
from agentkv._chat.reply import ReplyParser

pytestmark = pytest.mark.anyio

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SYSTEM = {"role": "system", "content": "You are Nano, a desk agent."}
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}


async def test_a_call_and_its_result(anyio_backend: str) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx:
        branch = await ctx.branch([SYSTEM], tools=[WEATHER])
        await branch.extend([QUESTION])
        made = await branch.generate(max_tokens=64)
        reply = branch.messages[-1]
        assert reply.calls == (kv.ToolCall("weather", {"city": "Oslo"}, "call00000"),)
        assert ctx.tokenizer.decode(branch.tokens[reply.start : reply.end], skip_special=False) == made.text
        length = len(branch)
        result: dict[str, Any] = {"role": "tool", "content": '{"temperature": 3}', "tool_call_id": reply.calls[0].id}
        done = await branch.extend([result])
        assert (done.kept, done.rewritten) == (length, 0)
        assert branch.tokens == ctx.tokenizer.apply_chat(branch.messages, [WEATHER])
        await branch.generate(max_tokens=64)
        assert [message.role for message in branch.messages] == ["system", "user", "assistant", "tool", "assistant"]
        await branch.extend([QUESTION])
        await branch.generate(max_tokens=64)
        assert branch.messages[-1].calls[0].id == "call00001"


async def test_a_call_that_is_cut_short_is_no_whole_call(anyio_backend: str) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx:
        branch = await ctx.branch([SYSTEM, QUESTION], tools=[WEATHER])
        await branch.generate(max_tokens=8)
        (call,) = branch.messages[-1].calls
        assert call.error is not None
        assert call.arguments is None
        text = branch.text
        done = await branch.extend([{"role": "tool", "content": "error: cut short"}])
        assert done.rewritten == 0
        assert branch.text.startswith(text)
        assert branch.messages[-2].calls == (call,)


@pytest.mark.parametrize(
    "tokens",
    [
        ["a ", "<", "<", "tool", "_", "b"],
        ["So", " <to", "<tool", "_call", "x"],
        ["w", "<", "x", ">", "\n<", "tool", "<tool"],
        [*"a <<tool<tool_calb"],
    ],
)
def test_how_many_tokens_nobody_was_told_of(tokens: list[str]) -> None:
    """Those at the end that may be a call yet; one of which half was told is none of them."""
    parser = ReplyParser(NANO.fit({}), [token.encode() for token in tokens], "", [WEATHER])
    told, asked = "", 0
    for place in range(len(tokens)):
        said = "".join(delta.text for delta in parser.feed_ids([place]) if isinstance(delta, TextDelta))
        if said:  # where a message would be cut
            told, asked = told + said, asked + 1
            fed = tokens[: place + 1]
            untold = [n for n in range(len(fed)) if len("".join(fed[:n])) >= len(told)]
            assert parser.n_held(range(place + 1)) == len(untold), (told, fed)
    assert asked > 1
