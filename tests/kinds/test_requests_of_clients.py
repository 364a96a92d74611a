"""Requests in the shapes that clients really send, written by us: what changes no answer is taken, the rest refused.

To add a case, write a row: who sends it, to which path, what it adds to a request that is right (`RIGHT`), the
parameter that a strict server names (none where nothing is left out), and, where it is counted in `/metrics`, as what.
A row in `REFUSED` is one that no server takes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import agentkv as kv
from tests.agentkv.serve.conftest import SETTINGS, Served, serving, serving_of

pytestmark = pytest.mark.anyio

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT, BRANCHES, TOKENS, TOKENIZE = (
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/branches",
    "/v1/tokens",
    "/tokenize",
)
HI: dict[str, Any] = {"role": "user", "content": "Who are you?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
TASK = {"type": "object", "properties": {"notes": {"type": "object", "propertyNames": {"type": "string"}}}}
WEATHER = {"name": "weather", "input_schema": SCHEMA}
RIGHT: Mapping[str, dict[str, Any]] = {
    CHAT: {"model": "nano", "messages": [HI], "max_tokens": 1},
    COMPLETIONS: {"model": "nano", "prompt": "Who", "max_tokens": 1},
    RESPONSES: {"model": "nano", "input": "Who are you?", "max_output_tokens": 1},
    MESSAGES: {"model": "nano", "messages": [HI], "max_tokens": 1},
    COUNT: {"model": "nano", "messages": [HI]},
    BRANCHES: {"messages": [HI]},
    TOKENS: {"tokens": [5, 6], "max_tokens": 1},
    TOKENIZE: {"prompt": "Who"},
}


class Row(NamedTuple):
    client: str
    path: str
    body: dict[str, Any]
    strictly: str
    counted: str = ""


def text(said: str = "Who are you?", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": said, **more}]}


def before(**more: Any) -> dict[str, Any]:
    """A conversation with an answer that another server gave."""
    return {"messages": [HI, {"role": "assistant", "content": "I am Nano.", **more}, HI]}


TAKEN = [
    # Anthropic's protocol
    Row("Claude Code", MESSAGES, {"context_management": {"edits": [{"type": "x", "keep": 1}]}}, "context_management"),
    Row("Claude Code", COUNT, {"context_management": {"edits": [1]}}, "context_management", "context_management"),
    Row("Claude Code", MESSAGES, {"thinking": {"type": "adaptive"}}, "thinking", "thinking"),
    Row("Claude Code", MESSAGES, {"thinking": {"type": "adaptive", "display": "omitted"}}, "display"),
    Row("Claude Code", MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking", "thinking"),
    Row("Claude Code", MESSAGES, {"output_config": {"effort": "high"}}, "output_config", "output_config.effort"),
    Row("Claude Code", COUNT, {"output_config": {"effort": "high"}}, "output_config.effort", "output_config.effort"),
    Row("Claude Code", MESSAGES, {"model": "claude-small-1"}, "claude-small-1", "models called claude-..."),
    Row("Claude Code", MESSAGES, {"messages": [text(cache_control={"type": "ephemeral", "scope": "global"})]}, "scope"),
    Row("Claude Code", MESSAGES, {"messages": [text(cache_control={"type": "ephemeral", "ttl": "1d"})]}, "ttl"),
    Row("Claude Code", MESSAGES, {"messages": [text(citations=[1])]}, "citations", "citations"),
    Row("Claude Code", MESSAGES, {"tools": [{"name": "t", "input_schema": TASK}]}, "propertyN", "schemas of tools"),
    Row("Claude Code", MESSAGES, {"tools": [WEATHER, {"type": "web_search_1", "name": "s", "max_uses": 3}]}, "tools.1"),
    Row("Claude Code", MESSAGES, {"tools": [{**WEATHER, "defer_loading": True}]}, "defer", "tools.*.defer_loading"),
    Row("OpenCode", MESSAGES, {"mcp_servers": [], "container": None, "stop_sequences": None}, "mcp_servers"),
    Row("OpenCode", MESSAGES, {"temperature": None, "top_p": None, "top_k": -1, "max_tokens": 1.0}, "max_tokens"),
    Row("Zed", MESSAGES, {"service_tier": "priority", "speed": "fast"}, "service_tier", "service_tier"),
    Row("LiteLLM", MESSAGES, before(id="m", type="message", model="x", stop_reason="end_turn", usage={"a": 1}), "mess"),
    Row("of others", MESSAGES, {"messages": [HI, {"role": "assistant", "content": [
        {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Nano."}]}, HI]}, "redacted_thinking"),
    # OpenAI's Responses
    Row("Codex", RESPONSES, {"reasoning": {"summary": "auto"}}, "reasoning.summary", "reasoning.summary"),
    Row("Codex", RESPONSES, {"reasoning": {"effort": "medium"}}, "reasoning_effort", "reasoning_effort"),
    Row("Codex", RESPONSES, {"include": ["reasoning.encrypted_content"]}, "include.0", "include.*"),
    Row("Codex", RESPONSES, {"client_metadata": {"installation": "i"}}, "client_metadata", "client_metadata"),
    Row("Codex", RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity", "text.verbosity"),
    Row("Codex", RESPONSES, {"tools": [{"type": "function", **FUNCTION}, {"type": "web_search", "x": 1}]}, "tools.1"),
    Row("Codex", RESPONSES, {"tools": [{"type": "custom", "name": "patch", "format": {"type": "grammar"}}]}, "tools.0"),
    Row("Codex", RESPONSES, {"tools": [
        {"type": "namespace", "name": "files", "description": "", "tools": [{"type": "function", **FUNCTION}]}]}, ""),
    Row("Codex", RESPONSES, {"input": [HI | {"type": "message", "metadata": {"turn": 1}}]}, "input.0.metadata"),
    Row("Codex", RESPONSES, {"input": [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"}, HI]}, "input.0.encrypted_content"),
    Row("Codex", RESPONSES, {"stream_options": {}, "prompt_cache_retention": "24h"}, "stream_options"),
    # OpenAI's chat
    Row("aider", CHAT, {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}, ""),
    Row("aider", CHAT, {"stream_options": {}}, "stream_options"),
    Row("aider", CHAT, {"reasoning_effort": "high"}, "reasoning_effort", "reasoning_effort"),
    Row("llm", CHAT, {"stream": False, "stream_options": {"include_usage": False}}, "stream_options"),
    Row("Open WebUI", CHAT, {"max_tokens": 40.0, "top_k": -1, "seed": None, "stop": None}, "top_k"),
    Row("Open WebUI", CHAT, {"max_tokens": -1, "max_completion_tokens": 1, "logit_bias": {}}, "max_tokens"),
    Row("Open WebUI", CHAT, {"metadata": {"chat": "1"}, "tools": [], "tool_ids": [], "files": []}, "tool_ids"),
    Row("Open WebUI", CHAT, {"chat_id": None, "features": {"web_search": False}, "variables": {}}, "chat_id"),
    Row("Continue", CHAT, {"tools": [TOOL], "tool_choice": None, "parallel_tool_calls": False, "stop": []}, ""),
    Row("Continue", CHAT, {"prediction": {"type": "content", "content": "x"}}, "prediction", "prediction"),
    Row("Zed", CHAT, {"messages": [text()], "prompt_cache_key": "k", "stop": [], "tools": []}, ""),
    Row("OpenCode", CHAT, {"tools": [TOOL, {"type": "web_search"}]}, "tools.1.type", "tools of other types"),
    Row("OpenCode", CHAT, before(reasoning_content="hm", reasoning_details=[{"text": "hm"}]), "reasoning_details"),
    Row("Cline", CHAT, before(thinking_blocks=[{"thinking": "hm"}], provider_specific_fields={"a": 1}), "messages.1"),
    Row("Cline", CHAT, before(finish_reason="stop", refusal=None, annotations=[], audio=None, function_call=None), "m"),
    Row("Cline", CHAT, {"messages": [text(cache_control={"type": "ephemeral"})]}, ""),
    Row("Cline", CHAT, {"cache_control": {"type": "ephemeral"}, "usage": {"include": True}}, "cache_control"),
    Row("Roo", CHAT, {"store": None, "service_tier": "flex", "verbosity": "highest"}, "verbosity", "service_tier"),
    Row("LiteLLM", CHAT, {"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]}, "tools.0.cache_control"),
    Row("LiteLLM", CHAT, {"tools": [{"type": "function", "function": {**FUNCTION, "strict": "no"}}]}, "strict"),
    Row("LangChain", CHAT, {"functions": None, "function_call": None, "n": 1.0, "logprobs": None}, "n"),
    # the others
    Row("llama.vim", COMPLETIONS, {"n": None, "echo": None, "max_tokens": 1.0, "cache_prompt": True}, "n"),
    Row("Continue", COMPLETIONS, {"suffix": None, "best_of": None, "stream_options": {}}, "stream_options"),
    Row("any", BRANCHES, {"template": None, "tools": None, "messages": before(finish_reason="stop")["messages"]}, "m"),
    Row("any", TOKENS, {"max_tokens": 1.0, "tokens": [5.0, 6], "lora": None}, "tokens.0"),
    Row("any", TOKENIZE, {"add_special_tokens": None, "id": None}, "id"),
    Row("any", MESSAGES, {"tools": [{"name": "f", "input_schema": {"required": [5]}}]}, "tools", "schemas of tools"),
    Row("any", MESSAGES, {"tools": [{"name": "f", "input_schema": {"properties": None, "required": None}}]}, ""),
]  # fmt: skip

REFUSED = [
    Row("any", CHAT, {"n": 99}, "n"),
    Row("any", CHAT, {"n": 1.5}, "n"),
    Row("any", CHAT, {"max_tokens": -2}, "max_tokens"),
    Row("any", CHAT, {"messages": []}, "messages"),
    Row("any", CHAT, {"messages": [None]}, "messages.0"),
    Row("any", CHAT, {"logit_bias": {"no": 1}}, "logit_bias"),
    Row("any", CHAT, {"audio": {"voice": "x"}}, "audio"),
    Row("any", CHAT, {"enable_thinking": False}, "enable_thinking"),
    Row("any", CHAT, {"grammar": "root ::= x"}, "grammar"),
    Row("any", CHAT, {"web_search_options": {"size": "low"}}, "web_search_options"),
    Row("any", CHAT, {"messages": [HI | {"refusal": "no"}]}, "messages.0.refusal"),
    Row("any", CHAT, {"tools": [{"type": "fuction", "function": FUNCTION}]}, "tools.0.type"),
    Row("any", CHAT, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    Row(
        "any",
        CHAT,
        {"tools": [TOOL, {"type": "s"}], "tool_choice": {"type": "function", "function": {"name": "s"}}},
        "t",
    ),
    Row("any", RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    Row("any", RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
    Row("any", MESSAGES, {"max_tokens": None}, "max_tokens"),
    Row("any", MESSAGES, {"model": "other"}, "other"),
    Row("any", MESSAGES, {"tools": [{"type": "s_1", "name": "s"}], "tool_choice": {"type": "tool", "name": "s"}}, "t"),
    Row("any", MESSAGES, {"container": "c"}, "container"),
    Row("any", TOKENS, {"tokens": []}, "tokens"),
    Row("any", TOKENS, {"tokens": [5.5]}, "tokens.0"),
    # typing errors, and what is meant
    Row("of a typo", CHAT, {"max_token": 5}, "max_token is not supported by this server; did you mean max_tokens?"),
    Row("of a typo", CHAT, {"n_predict": 5}, "did you mean max_tokens?"),
    Row("of a typo", CHAT, {"message": [HI]}, "message is not supported by this server; did you mean messages?"),
    Row("of a typo", CHAT, {"tools": [{"type": "function", "function": {**FUNCTION, "paramters": SCHEMA}}]},
        "tools.0.function.paramters is not supported by this server; did you mean parameters?"),
    Row("of a typo", CHAT, {"messages": [{"rol": "user", "content": "x"}]}, "did you mean it by rol?"),
    Row("of a field of another part", MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "tool_use_id": "t"}]}]},
        "messages.0.content.0.tool_use_id is not supported by this server; leave it out"),
    Row("of a typo", CHAT, {"messages": [HI | {"role": "robot"}]}, "messages.0.role: the role str 'robot' must be one"),
    Row("of a typo", CHAT, {"tool_choice": "sometimes"}, "'auto', 'none' or 'required'"),
    Row("of a typo", CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": "weather"}},
        "tool_choice.function is str 'weather': it must be an object"),
    Row("of a typo", CHAT, {"response_format": "json"}, "response_format is str 'json': it must be an object"),
    Row("of a typo", MESSAGES, {"max_token": 5, "max_tokens": 1}, "did you mean max_tokens?"),
    Row("of a typo", f"{BRANCHES}/desk/generate", {"sampling": {"temprature": 1}},
        "sampling.temprature is not supported by this server; did you mean temperature?"),
    Row("of a typo", f"{BRANCHES}/desk/rollback", {"length": 10_000}, "cannot roll branch 'desk' back"),
    Row("of a typo", f"{BRANCHES}/dsk/generate", {}, "no branch 'dsk': it was never made"),
    Row("of a typo", "/v1/branch", {}, "there is nothing at /v1/branch; did you mean /v1/branches?"),
    Row("of a typo", "/v2", {}, "/openapi.json lists what there is"),
    Row("of a typo", "/health", {}, "/health takes GET, HEAD, not POST"),
]  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def post(served: Served, row: Row) -> tuple[int, str]:
    response = await served.http.post(row.path, json={**RIGHT.get(row.path, {}), **row.body})
    return response.status_code, response.text


async def test_what_changes_no_answer_is_taken_and_counted() -> None:
    async with serving() as served:
        for row in TAKEN:
            before_it = await served.http.get("/metrics")
            status, told = await post(served, row)
            assert status == 200, (row, told)
            after_it = await served.http.get("/metrics")
            if row.counted:
                assert _ignored(after_it.text, row.counted) > _ignored(before_it.text, row.counted), row


async def test_a_strict_server_refuses_what_it_would_leave_out() -> None:
    async with serving(replace(SETTINGS, strict=True)) as served:
        for row in TAKEN:
            status, told = await post(served, row)
            if not row.strictly:
                assert status == 200, (row, told)
            else:
                assert status in (400, 404), row
                assert row.strictly in told, (row, told)
        assert not _ignored((await served.http.get("/metrics")).text, "")


@pytest.mark.parametrize("strict", [False, True])
async def test_what_would_change_an_answer_is_refused_by_name(strict: bool) -> None:
    async with serving(replace(SETTINGS, strict=strict)) as served:
        await served.http.post(BRANCHES, json={"name": "desk"})
        for row in REFUSED:
            status, told = await post(served, row)
            assert status in (400, 404, 405), row
            assert strict or row.strictly in told, (row, told)  # a strict one may name another


async def test_what_is_left_out_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        with caplog.at_level(logging.WARNING, "agentkv"):
            for _ in range(3):
                await post(served, Row("any", CHAT, before(finish_reason="stop"), ""))
                await post(served, Row("any", MESSAGES, {"tools": [{"name": "task", "input_schema": TASK}]}, ""))
        metrics = (await served.http.get("/metrics")).text
    said = [record.getMessage() for record in caplog.records if "left out of requests" in record.getMessage()]
    assert ["finish_reason" in each for each in said] == [True, False]
    assert "propertyNames" in said[1]
    assert "'task'" in said[1]
    assert _ignored(metrics, "messages.*.finish_reason") == 3
    assert _ignored(metrics, "schemas of tools") == 3


async def test_a_header_line_that_changes_leaves_the_prefix_in_the_cache() -> None:
    """A line of the system prompt that is addressed to the API is not shown to the model, in each protocol."""
    long = "You are Nano, a desk agent. " * 20

    def asked(path: str, turn: int) -> dict[str, Any]:
        line = f"x-some-vendor-header: version=1; hash={turn * 7919:05x};"
        match path:
            case "/v1/messages":
                return {"system": [{"type": "text", "text": line}, {"type": "text", "text": long}]}
            case "/v1/responses":
                return {"instructions": f"{line}\n{long}", "store": False}
        return {"messages": [{"role": "system", "content": f"{line}\n{long}"}, HI]}

    def cached(path: str, usage: Any) -> tuple[int, int]:
        match path:
            case "/v1/messages":
                return usage["cache_read_input_tokens"], usage["cache_read_input_tokens"] + usage["input_tokens"]
            case "/v1/responses":
                return usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    for path in (MESSAGES, CHAT, RESPONSES):
        async with kv.testing.replies(lambda prompt: "I am Nano.", capacity=4096) as ctx, serving_of(ctx) as served:
            for turn in range(1, 4):
                response = await served.http.post(path, json={**RIGHT[path], **asked(path, turn)})
                found, prompt = cached(path, response.json()["usage"])
                assert turn == 1 or found >= 0.95 * prompt, (path, turn, found, prompt)
            assert "x-some-vendor" not in "".join(branch.text for branch in ctx.branches)


async def test_calls_of_functions_with_a_namespace_come_with_both_names() -> None:
    """The model calls them by one name; the client reads two, whole and streamed, and sends them back."""
    tools = [{"type": "namespace", "name": "desk__", "tools": [{"type": "function", **FUNCTION}]}]
    called = kv.testing.call("desk__weather", city="Oslo")
    async with kv.testing.replies([called, called, "Rain."], capacity=4096) as ctx, serving_of(ctx) as served:
        body = {**RIGHT[RESPONSES], "tools": tools, "max_output_tokens": 100, "store": False}
        (call,) = (await served.http.post(RESPONSES, json=body)).json()["output"]
        assert (call["namespace"], call["name"], call["arguments"]) == ("desk__", "weather", '{"city": "Oslo"}')
        streamed = (await served.http.post(RESPONSES, json=body | {"stream": True})).text
        assert '"namespace":"desk__"' in streamed.replace(" ", "")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        answer = await served.http.post(RESPONSES, json=body | {"input": [HI, call, result]})
        assert answer.json()["output"][0]["content"][0]["text"] == "Rain."
        assert any("desk__weather" in branch.text for branch in ctx.branches)


def _ignored(metrics: str, what: str) -> float:
    lines = [line for line in metrics.splitlines() if line.startswith("agentkv_ignored_total") and what in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
