"""What chat completions refuse: each error names the parameter, in a message of a length to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import openai
import pytest

from .conftest import SETTINGS, serving
from .test_chat import HI, WEATHER, ask

pytestmark = pytest.mark.anyio


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "parameters": parameters}}


REFUSED: list[tuple[dict[str, Any], int, str | None]] = [
    ({"model": "gpt-5"}, 404, "model"),
    ({"temperature": 3}, 400, "temperature"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "user", "content": "x", "foo": 1}]}, 400, "messages.0.foo"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, 400, "messages"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": "AAA"}]}, 400, "messages"),
    ({"messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [1]}, *HI]}, 400, "messages"),
    ({"messages": [*HI, {"role": "tool", "content": {"a": 1}}]}, 400, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}, 400, "messages"),
    ({"n": 17}, 400, "n"),
    ({"n": 0}, 400, "n"),
    ({"stop": [""]}, 400, "stop"),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, 400, "logit_bias"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"tool_choice": "any"}, 400, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, 400, "tool_choice.function"),
    ({"stop": 5}, 400, "stop"),
    ({"stop": ["a", 5]}, 400, "stop.1"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "no"}}}, 400, "tool_choice"),
    ({"tools": [WEATHER, WEATHER]}, 400, "tools"),
    ({"top_logprobs": 3}, 400, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"audio": {"voice": "x"}}, 400, "audio"),
    ({"modalities": ["audio"]}, 400, "modalities.0"),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "wrong"}}}},
        400,
        "response_format",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": 5, "schema": {}}}},
        400,
        "response_format.json_schema.name",
    ),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, 400, "response_format.json_schema.name"),
    ({"tools": [tool({"properties": -1})]}, 400, "tools"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, 400, "tools.0.function.name"),
    ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
    ({"": 1}, 400, "''"),
    ({"x" * 10**6: 1}, 400, "x" * 60 + "..."),
    ({"messages": [{"role": "user", "content": "x", "x" * 10**6: 1}]}, 400, "messages.0." + "x" * 60 + "..."),
    ({"model": "x" * 10**6}, 404, "model"),
    ({"max_tokens": 10**30}, 400, "max_tokens"),
]


REFUSED_STRICTLY: list[tuple[dict[str, Any], int, str | None]] = [
    ({"tools": [tool({"required": [5]})]}, 400, "tools"),
    ({"tools": [{"type": "web_search"}]}, 400, "tools.0.type"),
    ({"reasoning_effort": "high"}, 400, "reasoning_effort"),
    ({"web_search_options": {}}, 400, "web_search_options"),
]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_done_is_refused_by_name(stream: bool, strict: bool) -> None:
    async with serving(replace(SETTINGS, strict=strict)) as site:
        for wrong, status, named in [*REFUSED, *(REFUSED_STRICTLY if strict else ())]:
            body = {"model": "nano", "messages": HI, "max_tokens": 4}
            if stream and "stream_options" not in wrong:
                body["stream"] = True
            response = await site.http.post("/v1/chat/completions", json=body | wrong)
            assert response.status_code == status, (wrong, response.text)
            error = response.json()["error"]
            assert 0 < len(error["message"]) < 1100
            assert error["param"] == named, wrong
            assert str(named) in error["message"]  # which some clients show alone
        assert not site.ctx.branches


async def test_a_tool_that_no_grammar_holds_is_named_and_no_grammar_shown() -> None:
    async with serving(replace(SETTINGS, strict=True)) as site:
        tools = [WEATHER, tool({"required": [5]})]
        response = await site.http.post("/v1/chat/completions", json={"model": "nano", "messages": HI, "tools": tools})
        told = response.json()["error"]["message"]
        assert (
            told == "tools: calls of the tool 'look' cannot be held to its parameters: "
            "Expected string for 'required' item, got 5"
        )


async def test_errors_are_those_of_the_client() -> None:
    async with serving() as site:
        with pytest.raises(openai.NotFoundError):
            await ask(site, model="gpt-5")
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await ask(site, temperature=9)
