"""Kinds of work that ship with the package: whole, of the sizes that they promise, and answerable."""

from __future__ import annotations

import json

import pytest

import agentkv as kv
from agentkv._bench.work import FOLDER, KINDS, read_work


def test_each_kind_has_a_file_of_eight_prompts() -> None:
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == set(KINDS)
    for kind, prompts in read_work(list(KINDS), 99).items():
        assert len(prompts) == 8, kind
        assert len({json.dumps(prompt.content) for prompt in prompts}) == 8, kind
        assert all(prompt.max_tokens for prompt in prompts), kind
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 80_000


def test_as_many_prompts_as_are_asked_for() -> None:
    [few], [more] = (list(read_work(["edit"], n).values()) for n in (3, 5))
    assert (len(few), more[:3]) == (3, few)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(kv.InvalidInput, match="'cook' is no kind of work"):
        read_work(["edit", "cook"], 1)


def test_edits_are_of_files_of_about_sixty_lines() -> None:
    for prompt in read_work(["edit"], 8)["edit"]:
        assert isinstance(prompt.content, list)
        [message] = prompt.content
        _, file, _ = message["content"].split("```")
        assert 50 <= len(file.splitlines()) <= 70


def test_extractions_have_schemas_that_grammars_hold() -> None:
    for prompt in read_work(["extract"], 8)["extract"]:
        assert isinstance(prompt.output, kv.JsonSchema)


def test_tool_loops_end_in_a_long_result_of_a_call() -> None:
    for prompt in read_work(["tools"], 8)["tools"]:
        assert isinstance(prompt.content, list)
        assert prompt.tools
        *_, call, result = prompt.content
        assert [each["id"] for each in call["tool_calls"]] == [result["tool_call_id"]]
        assert len(result["content"]) > 1000
        assert sum(message["role"] == "tool" for message in prompt.content) == 2
        names = {tool["function"]["name"] for tool in prompt.tools}
        assert {each["function"]["name"] for each in call["tool_calls"]} <= names
