"""One conversation in every protocol of a server, whole and streamed: what a table of histories runs over.

Messages and tools are in OpenAI's form. Here they get the shape of the protocol, and answers come back as one thing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.agentkv.serve.conftest import Served

from .event_order import check_chat, check_messages, check_responses

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PROTOCOLS = ("chat", "responses", "messages", "branches")
WAYS = [
    pytest.param(name, streamed, id=f"{name}-{'streamed' if streamed else 'whole'}")
    for name in PROTOCOLS
    for streamed in (False, True)
]
each_way = pytest.mark.parametrize(("protocol", "streamed"), WAYS)


@dataclass
class Answered:
    """What a client has of an answer: its content, the calls (id, name and arguments as JSON), and why it ended; or
    the error."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ended: str = ""
    error: str = ""
    prompt_tokens: int = 0
    cached: int = 0

    @property
    def message(self) -> dict[str, Any]:
        """As a client keeps it in its history."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [calling(*call) for call in self.calls]
        return message


def calling(name: str | None, tool: str, arguments: Any) -> dict[str, Any]:
    """A call, in OpenAI's form."""
    call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    return call if name is None else {"id": name, **call}


async def ask(
    served: Served,
    protocol: str,
    streamed: bool,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    max_tokens: int = 64,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> Answered:
    """Sends a conversation, and reads the answer."""
    speak = {"chat": _chat, "responses": _responses, "messages": _messages, "branches": _branches}[protocol]
    return await speak(served.http, streamed, messages, list(tools), max_tokens, more, dict(headers or {}))


async def _post(
    http: httpx.AsyncClient, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> tuple[str, Any, list[tuple[str, Any]]]:
    """The error, or the body, or the events of a stream."""
    response = await http.post(path, json=body, headers=headers)
    if response.status_code != 200:
        return f"{response.status_code} {response.text}", None, []
    if response.headers["content-type"].startswith("text/event-stream"):
        return "", None, list(_events(response.text))
    return "", response.json(), []


def _events(text: str) -> Iterator[tuple[str, Any]]:
    for block in text.split("\n\n"):
        name, data = "", ""
        for line in block.splitlines():
            kind, _, value = line.partition(": ")
            name, data = (value, data) if kind == "event" else (name, value if kind == "data" else data)
        if data and data != "[DONE]":
            yield name, json.loads(data)


async def _chat(
    http: httpx.AsyncClient, streamed: bool, messages: Any, tools: Any, most: int, more: Any, headers: Any
) -> Answered:
    body = {"model": "nano", "messages": messages, "max_tokens": most, "temperature": 0, "stream": streamed, **more}
    options = {"tools": tools} if tools else {}
    if streamed:
        options["stream_options"] = {"include_usage": True}
    error, whole, events = await _post(http, "/v1/chat/completions", {**body, **options}, headers)
    answer = Answered(error=error)
    if whole:
        (choice,) = whole["choices"]
        answer.text, answer.ended = choice["message"]["content"] or "", choice["finish_reason"]
        calls = choice["message"].get("tool_calls") or ()
        answer.calls = [[call["id"], call["function"]["name"], call["function"]["arguments"]] for call in calls]
    if events:
        check_chat(events)
    for _, chunk in events:
        for choice in chunk["choices"]:
            answer.ended = choice["finish_reason"] or answer.ended
            answer.text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                if "id" in call:
                    answer.calls.append([call["id"], call["function"]["name"], ""])
                answer.calls[call["index"]][2] += call["function"]["arguments"]
    for one in (whole, *(chunk for _, chunk in events)):
        if one and one.get("usage"):
            answer.prompt_tokens = one["usage"]["prompt_tokens"]
            answer.cached = one["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer


async def _responses(
    http: httpx.AsyncClient, streamed: bool, messages: Any, tools: Any, most: int, more: Any, headers: Any
) -> Answered:
    body: dict[str, Any] = {"model": "nano", "input": list(_items(messages)), "store": False, "stream": streamed}
    body |= {"max_output_tokens": most, "temperature": 0, **more}
    if tools:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in tools]
    error, whole, events = await _post(http, "/v1/responses", body, headers)
    if error:
        return Answered(error=error)
    if events:
        check_responses(events)
        name, last = events[-1]
        assert name in ("response.completed", "response.incomplete"), events[-1]
        whole = last["response"]
        added = [event["item"]["id"] for kind, event in events if kind == "response.output_item.added"]
        assert added == [item["id"] for item in whole["output"]]
    answer = Answered(ended=whole["status"], prompt_tokens=whole["usage"]["input_tokens"])
    answer.cached = whole["usage"]["input_tokens_details"]["cached_tokens"]
    for item in whole["output"]:
        if item["type"] == "message":
            answer.text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            answer.calls.append([item["call_id"], item["name"], item["arguments"]])
    return answer


def _items(messages: Any) -> Iterator[dict[str, Any]]:
    for message in messages:
        if message["role"] == "tool":
            output = {"call_id": message.get("tool_call_id", ""), "output": message["content"]}
            yield {"type": "function_call_output", **output}
            continue
        if message.get("content") or not message.get("tool_calls"):
            yield {"role": message["role"], "content": message.get("content") or ""}
        for call in message.get("tool_calls") or ():
            function = call.get("function", call)
            yield {"type": "function_call", "call_id": call.get("id", ""), **function}


async def _messages(
    http: httpx.AsyncClient, streamed: bool, messages: Any, tools: Any, most: int, more: Any, headers: Any
) -> Answered:
    begin = [message["content"] for message in messages[:1] if message["role"] in ("system", "developer")]
    rest = messages[len(begin) :] or [{"role": "system", "content": begin.pop()}]
    body: dict[str, Any] = {"model": "nano", "messages": [_of_anthropic(message) for message in rest]}
    body |= {"max_tokens": most, "temperature": 0, "stream": streamed, **more}
    if begin:
        body["system"] = begin[0]
    if tools:
        functions = [tool["function"] for tool in tools]
        body["tools"] = [{"name": each["name"], "input_schema": each["parameters"]} for each in functions]
    error, whole, events = await _post(http, "/v1/messages", body, headers)
    answer = Answered(error=error)
    if whole:
        answer.ended = whole["stop_reason"]
        for block in whole["content"]:
            answer.text += block.get("text", "")
            if block["type"] == "tool_use":
                answer.calls.append([block["id"], block["name"], json.dumps(block["input"])])
    if events:
        check_messages(events)
    for _, event in events:
        delta, block = event.get("delta", {}), event.get("content_block", {})
        answer.text += delta.get("text", "")
        answer.ended = delta.get("stop_reason") or answer.ended
        if block.get("type") == "tool_use":
            answer.calls.append([block["id"], block["name"], ""])
        if delta.get("type") == "input_json_delta":
            answer.calls[-1][2] += delta["partial_json"]
    usage = whole["usage"] if whole else next((e["message"]["usage"] for _, e in events if "message" in e), None)
    if usage:
        answer.cached = usage["cache_read_input_tokens"]
        answer.prompt_tokens = usage["input_tokens"] + answer.cached
    return answer


def _of_anthropic(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": message["content"]}
        return {"role": "user", "content": [result]}
    blocks: list[dict[str, Any]] = []
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        use = {"id": call.get("id", ""), "name": function["name"], "input": function["arguments"]}
        blocks.append({"type": "tool_use", **use})
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": blocks}


async def _branches(
    http: httpx.AsyncClient, streamed: bool, messages: Any, tools: Any, most: int, more: Any, headers: Any
) -> Answered:
    body = {"messages": messages, **({"tools": tools} if tools else {})}
    error, created, _ = await _post(http, "/v1/branches", body, headers)
    if error:
        return Answered(error=error)
    how = {"max_tokens": most, "stream": streamed, **more}
    path = f"/v1/branches/{created['id']}"
    error, whole, events = await _post(http, f"{path}/generate", how, headers)
    told = (await http.get(path, headers=headers)).json()
    await http.delete(path, headers=headers)
    whole = whole or (events[-1][1] if events else None)
    if error or "generation" not in whole:
        return Answered(error=error or json.dumps(whole))
    message = told["messages"][-1]
    answer = Answered(whole["generation"]["text"], ended=whole["generation"]["finish_reason"])
    answer.prompt_tokens = whole["generation"]["usage"]["prompt_tokens"]
    answer.calls = [
        [call["id"], call["name"], json.dumps(call["arguments"])] for call in message["calls"] if call["error"] is None
    ]
    return answer
