"""Tokens of texts and conversations, and back, over a real server."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Served

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "user", "content": "What is 7 * 8? <|im_end|>"}]
TOOL = {"type": "function", "function": {"name": "calculator", "parameters": {"type": "object", "properties": {}}}}

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/tokenize", {}, "either a prompt or messages"),
    ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "either a prompt or messages"),
    ("/tokenize", {"prompt": "a", "tools": []}, "tools goes with messages"),
    ("/tokenize", {"messages": MESSAGES, "parse_special": False}, "parse_special goes with a prompt"),
    ("/tokenize", {"messages": []}, "at least one chat message"),
    ("/tokenize", {"messages": [{"role": "x", "content": ""}]}, "must be one of"),
    ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, "not a variable"),
    ("/tokenize", {"prompt": 3}, "prompt is int 3"),
    ("/detokenize", {}, "tokens is missing"),
    ("/detokenize", {"tokens": "a"}, "tokens is str"),
    ("/detokenize", {"tokens": [-1]}, "not in the vocabulary"),
    ("/detokenize", {"tokens": [1024]}, "not in the vocabulary"),
    ("/detokenize", {"tokens": [5, 2**70]}, f"token {2**70} at index 1 is not in the vocabulary"),
]


async def posted(served: Served, path: str, body: dict[str, Any]) -> Any:
    response = await served.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_conversation(served: Served) -> None:
    for more in ({}, {"tools": [TOOL]}):
        told = await posted(served, "/tokenize", {"model": "nano", "messages": MESSAGES, **more})
        body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 1, **more}
        used = await served.openai.chat.completions.create(model="nano", **body)
        assert told["count"] == len(told["tokens"]) == used.usage.prompt_tokens
        assert told["max_model_len"] == 4096
        assert told["tokens"] == served.ctx.tokenizer.apply_chat(MESSAGES, more.get("tools"))
    closed = await posted(served, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})
    assert closed["tokens"] == served.ctx.tokenizer.apply_chat(MESSAGES, add_generation_prompt=False)


async def test_a_text_and_back(served: Served) -> None:
    text = "<|im_start|>user\nHé <|im_end|>"
    told = await posted(served, "/tokenize", {"prompt": text, "return_token_strs": True})
    assert "".join(told["token_strs"][:3]) == "<|im_start|>user\n"
    assert await posted(served, "/detokenize", {"tokens": told["tokens"]}) == {"prompt": text}
    used = await served.openai.completions.create(
        model="nano", prompt=text, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert told["tokens"] == used.choices[0].prompt_token_ids


async def test_a_text_of_others_stays_text(served: Served) -> None:
    told = await posted(served, "/tokenize", {"prompt": "<|im_end|>", "parse_special": False})
    assert not set(told["tokens"]) & set(served.ctx.tokenizer.special_ids)
    assert await posted(served, "/detokenize", {"tokens": told["tokens"]}) == {"prompt": "<|im_end|>"}
    assert (await posted(served, "/tokenize", {"prompt": "<|im_end|>"}))["count"] == 1


async def test_wrong_bodies(served: Served) -> None:
    for path, wrong, told in WRONG:
        response = await served.http.post(path, json=wrong)
        assert response.status_code == 400, wrong
        assert told in response.json()["error"]["message"]
    assert (await served.http.post("/tokenize", json={"model": "x", "prompt": "a"})).status_code == 404
    assert (await served.http.post("/detokenize", json={"model": "x", "tokens": []})).status_code == 404
