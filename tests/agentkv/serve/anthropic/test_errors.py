"""Errors in Anthropic's own shape, wherever they come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anthropic
import pytest

import agentkv as kv

from ..conftest import SETTINGS, Serve, Served, serving_of
from .weather import QUESTION, WEATHER, result

pytestmark = pytest.mark.anyio

BODY: dict[str, Any] = {"model": "nano", "max_tokens": 3, "messages": [QUESTION]}
CALLING = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}],
}


def said(block: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [block]}, *([QUESTION] if role == "assistant" else [])]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
    ({"messages": [QUESTION, CALLING]}, r"messages\.1\.content\.0.*no tool_result for 'c1'"),
    (said({"type": "image", "source": {"type": "url", "url": "x"}}), "'image'"),
    (said({"type": "document", "source": {}}), "'document'"),
    (said({"type": {"{0}": 1}, "text": "x"}), r"messages\.0\.content\.0 is of the type"),
    (said({"type": "text", "text": 3}), r"messages\.0\.content\.0\.text is int 3"),
    (said({"type": "text"}), r"messages\.0\.content\.0\.text is missing"),
    (
        said({"type": "text", "text": "x", "cache_control": {"type": "no"}}),
        r"content\.0\.cache_control\.type is str 'no'",
    ),
    (said({"type": "tool_use", "id": "a", "name": 5}, "assistant"), r"messages\.0\.content\.0\.name is"),
    ({"tool_choice": {"type": "tool", "name": 5}}, r"tool_choice\.name is int 5"),
    (said({"type": "thinking", "thinking": "hm"}), r"messages\.0\.content\.0"),
    (said({"type": "tool_result", "tool_use_id": "c1"}, "assistant"), r"messages\.0\.content\.0"),
    ({"messages": [result("c9")]}, r"messages\.0\.content\.0\.tool_use_id.*'c9'"),
    ({"messages": [QUESTION, CALLING, QUESTION]}, r"messages\.1\.content\.0.*no tool_result for 'c1'"),
    ({"messages": [QUESTION, CALLING, result("c1", [{"type": "image"}])]}, "'image'"),
    ({"tools": [{"name": "weather"}]}, r"tools\.0\.input_schema is missing"),
    ({"tool_choice": {"type": "any"}}, "there are no tools"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "'x'"),
    ({"tools": [WEATHER], "tool_choice": "auto"}, "tool_choice"),
    ({"thinking": {"type": "between_tools"}}, "'between_tools'"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, r"output_config\.format: .*not"),
    ({"tools": [{"name": "f", "input_schema": {"properties": -1}}]}, "tools: .*'f' have the properties int -1"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"stop_sequences": [""]}, r"stop_sequences\.0"),
    ({"thread": {"type": "create"}}, "thread_unsupported_request"),
    ({"container": "x"}, "container is not supported"),
]
WRONG_STRICTLY: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"name": "f", "input_schema": {"required": [5]}}]}, "tools: calls of the tool 'f'"),
    (said({"type": "redacted_thinking", "data": "x"}, "assistant"), "'redacted_thinking'"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{**WEATHER, "defer_loading": True}]}, "defer_loading"),
    ({"thinking": {"type": "adaptive"}}, "thinking: the model does not reason"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking: the model does not reason"),
    ({"output_config": {"effort": "low"}}, r"output_config\.effort: the model does not reason"),
    ({"mcp_servers": []}, "mcp_servers is not supported"),
    ({"context_management": {}}, "context_management is not supported"),
]


async def test_wrong_bodies(served: Served) -> None:
    for wrong, told in WRONG:
        with pytest.raises(anthropic.BadRequestError, match=told) as raised:
            await served.anthropic.post("/v1/messages", body={**BODY, **wrong}, cast_to=object)
        body: Any = raised.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert body["request_id"] == raised.value.response.headers["request-id"]
    assert served.ctx.branches == []


async def test_a_strict_server_refuses_what_changes_no_answer(serve: Serve) -> None:
    async with serve(strict=True) as served:
        for wrong, told in [*WRONG, *WRONG_STRICTLY]:
            with pytest.raises(anthropic.BadRequestError, match=told):
                await served.anthropic.post("/v1/messages", body={**BODY, **wrong}, cast_to=object)


async def test_other_errors(served: Served) -> None:
    async def kind(response: Any) -> tuple[int, str]:
        assert response.json()["type"] == "error"
        return response.status_code, response.json()["error"]["type"]

    post = served.http.post
    cut = await post("/v1/messages", content=b"{", headers={"content-type": "application/json"})
    assert await kind(cut) == (400, "invalid_request_error")
    assert await kind(await post("/v1/messages", json={**BODY, "model": "x"})) == (404, "not_found_error")
    assert await kind(await post("/v1/messages/count_tokens", json={"model": "x", "messages": [QUESTION]})) == (
        404,
        "not_found_error",
    )
    assert await kind(await post("/v1/messages/batches", json={})) == (404, "not_found_error")
    assert await kind(await post("/v1/messages", json=BODY, headers={"x-request-timeout": "0.000001"})) == (
        408,
        "timeout_error",
    )
    assert served.ctx.branches == []


async def test_the_guard_and_the_queue() -> None:
    limited = replace(SETTINGS, api_key="the key", most_bytes=500, most_running=1, most_waiting=0)
    async with kv.Context.open(kv.models.nano(), capacity=1024) as ctx, serving_of(ctx, limited) as served:
        keyless = await served.http.post("/v1/messages", json=BODY, headers={"x-api-key": "no"})
        assert (keyless.status_code, keyless.json()["error"]["type"]) == (401, "authentication_error")
        assert keyless.headers["request-id"] == keyless.json()["request_id"]
        body, key = {**BODY, "system": "x" * 500}, {"x-api-key": "the key"}
        large = await served.http.post("/v1/messages", json=body, headers=key)
        assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
        async with served.server.admission.place(60):
            with pytest.raises(anthropic.RateLimitError) as busy:
                await served.anthropic.messages.create(**BODY)
        assert busy.value.response.headers["retry-after"]
