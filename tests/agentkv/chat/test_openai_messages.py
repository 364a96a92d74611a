"""Messages as OpenAI's clients write them: understood, or refused by name, and never turned into text."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import agentkv as kv

from ...runtime.chat_styles import CHATML, HEADERS, INSTRUCTIONS, PARAMETERS, THINKING
from ..bad_input import value
from ..conftest import OpenContext, WithTemplate

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Weather?"}
ARGUMENTS = {"city": "Oslo", "days": [1, 2], "unit": "C"}


def calling(arguments: object = None, **message: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": ARGUMENTS if arguments is None else arguments}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls, **message}


RESULT = {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "21"}


@pytest.mark.parametrize("template", [CHATML, HEADERS, INSTRUCTIONS, PARAMETERS, THINKING])
async def test_a_dump_of_openai_s_client_is_understood(with_template: WithTemplate, template: str) -> None:
    async with kv.Context.open(with_template(template), capacity=1024, kv_dtype="fp32", threads=1) as ctx:
        plain = await ctx.branch([USER, calling(), RESULT])
        nothing = ("refusal", "audio", "function_call", "annotations", "reasoning_content")
        dumped = calling(json.dumps(ARGUMENTS), **dict.fromkeys(nothing))
        same = await ctx.branch([{**USER, "name": None, "tool_calls": None}, dumped, RESULT])
        assert same.tokens == plain.tokens
        assert "None" not in same.text
        assert same.messages == plain.messages
        call = kv.ToolCall("weather", ARGUMENTS, "call_1")
        assert [message.calls for message in same.messages] == [(), (call,), ()]
        assert (same.messages[2].call_id, same.messages[2].name) == ("call_1", "weather")
        again = await ctx.branch(same.messages)
        assert again.tokens == same.tokens


@pytest.mark.parametrize("content", [None, ""])
async def test_a_template_that_writes_none_never_does(with_template: WithTemplate, content: str | None) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    )
    template += "{% endfor %}<|im_end|>{% endfor %}"
    async with kv.Context.open(with_template(template), capacity=256, kv_dtype="fp32", threads=1) as ctx:
        branch = await ctx.branch([USER, calling(content=content)])
        assert branch.text == "<|im_start|>Weather?<|im_end|><|im_start|>weather<|im_end|>"


async def test_a_template_that_asks_for_none_gets_it(with_template: WithTemplate) -> None:
    template = "{% for m in messages %}<|im_start|>{% if m.content is none %}{{ m.tool_calls[0].function.name }}"
    template += "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    async with kv.Context.open(with_template(template), capacity=256, kv_dtype="fp32", threads=1) as ctx:
        branch = await ctx.branch([USER, calling()])
        assert branch.text == "<|im_start|>Weather?<|im_end|><|im_start|>weather<|im_end|>"


async def test_reasoning_has_the_name_that_the_template_knows(with_template: WithTemplate) -> None:
    template = "{% for m in messages %}{% if 'thinking' in m %}({{ m.thinking }}){% endif %}{{ m.content }}{% endfor %}"
    message = kv.Message("assistant", "Yes.", reasoning="hm")
    async with kv.Context.open(with_template(template), capacity=256, kv_dtype="fp32", threads=1) as ctx:
        branch = await ctx.branch([message])
        assert branch.text == "(hm)Yes."
        assert branch.messages[0].reasoning == "hm"


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "assistant", "content": None}, "no content"),
        ({"role": "tool", "content": {"a": 1}}, "json.dumps"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "input_audio"),
        ({"role": "assistant", "content": "", "function_call": {"name": "f"}}, "function_call"),
        ({"role": "assistant", "content": None, "refusal": "No."}, "refusal"),
        ({"role": "assistant", "content": "", "audio": {"id": "x"}}, "audio"),
        ({"role": "user", "content": "x", "name": 5}, "name"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "tool_call_id"),
        ({"role": "assistant", "content": "x", "reasoning_content": ["x"]}, "reasoning_content"),
        ({"role": "assistant", "content": None, "tool_calls": {"name": "f"}}, "tool_calls"),
        ({"role": "assistant", "content": None, "tool_calls": ["f"]}, "call 0"),
        ({"role": "assistant", "content": None, "tool_calls": [{"type": "custom", "custom": {}}]}, "custom"),
        ({"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": {}}}]}, "name"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": 5, "name": "f"}]}, "id int 5"),
    ],
)
async def test_what_is_not_understood_is_refused_by_name(
    open_context: OpenContext, message: dict[str, Any], named: str
) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch([USER])
        tokens = branch.tokens
        with pytest.raises(kv.InvalidInput, match="message 1") as refused:
            await ctx.branch([USER, message])
        assert named in str(refused.value)
        with pytest.raises(kv.InvalidInput, match="message 0"):
            await branch.extend([message])
        assert branch.tokens == tokens


async def test_whatever_messages_hold_is_understood_or_refused(open_context: OpenContext) -> None:
    rng = random.Random(5)

    def some() -> Any:
        return value(rng) if rng.random() < 0.25 else rng.choice(["x", "f", {"a": 1}, [], None, '{"a": 1}'])

    def drawn() -> Any:
        which = rng.randrange(3)
        if which == 0:
            return kv.Message(some(), some(), some(), rng.choice([some(), (kv.ToolCall(some(), some()),)]), some())
        if which == 1:
            call = {"id": some(), "type": "function", "function": {"name": some(), "arguments": some()}}
            return {"role": "assistant", "content": some(), "tool_calls": rng.choice([[call], some()])}
        key = rng.choice(["reasoning", "function_call", "audio", "thinking"])
        return {"role": "tool", "content": some(), "name": some(), "tool_call_id": some(), key: some()}

    async with open_context() as ctx:
        branch = await ctx.branch([USER])
        understood = 0
        for _ in range(500):
            async with await branch.fork() as kid:
                try:
                    await kid.extend([drawn()], template=rng.choice([None, None, some(), {"documents": some()}]))
                except kv.AgentKVError:
                    assert kid.tokens == branch.tokens
                else:
                    understood += 1
                    assert len(kid.messages) == 2
        assert understood > 5
