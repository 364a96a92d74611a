"""Prompts of a benchmark: files, those that ship with the package, and models without a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agentkv as kv
from agentkv._bench.prompts import BenchPrompt, default_prompts, plain_text, read_prompts


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "Hi"}]
    schema = {"type": "integer"}
    lines = [
        "text",
        messages,
        {"messages": messages, "tools": [{"name": "x"}]},
        {"messages": messages, "schema": schema, "max_tokens": 9},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_prompts(path) == [
        BenchPrompt("text"),
        BenchPrompt(messages),
        BenchPrompt(messages, [{"name": "x"}]),
        BenchPrompt(messages, None, schema, 9),
    ]


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"schema": 3}, "`schema`"), ({"max_tokens": "9"}, "`max_tokens`"), ({"max_tokens": 1}, "`max_tokens`")],
)
def test_fields_that_are_none(tmp_path: Path, fields: dict[str, object], says: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}))
    with pytest.raises(kv.InvalidInput, match=f"line 1 has a {says}"):
        read_prompts(path)


def test_text_for_a_model_without_a_chat_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
    messages = [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a tree"},
    ]
    assert plain_text(messages) == (
        'User:\nWhat is it?\n\nAssistant:\n{"name": "look", "arguments": {"at": "it"}}\n\nTool:\na tree\n\nAssistant:\n'
    )


def test_prompts_that_come_with_the_package(folder: Path) -> None:
    generic, nano = default_prompts(folder), default_prompts(kv.models.nano())
    assert len(generic) >= 10
    assert len(nano) == 64
    assert all(prompt.tools is not None for prompt in nano)


def test_the_prompts_of_nano_are_what_the_script_writes(tmp_path: Path) -> None:
    from examples.nano.prompts import main

    main(tmp_path / "prompts.jsonl", 64, 1)
    assert (tmp_path / "prompts.jsonl").read_bytes() == (kv.models.nano() / "prompts.jsonl").read_bytes()
