"""Tools, calls and results that a chat template knows nothing of, told in the words of messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv

pytestmark = pytest.mark.anyio

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROPERTIES = {
    "city": {"type": "string", "description": "Where."},
    "unit": {"enum": ["c", "f"]},
    "days": {"type": "array", "items": {"type": "integer"}},
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "How is Oslo?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "It rains."},
]


@pytest.fixture(scope="module")
def toolless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """nano under a template that writes roles and contents alone."""
    folder = tmp_path_factory.mktemp("toolless") / "model"
    shutil.copytree(kv.models.nano(), folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.unlink()
    file.write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return folder


@pytest.mark.parametrize("form", [name for name in kv.formats.NAMES if name != "plain"])
async def test_history_is_told_in_every_format(toolless: Path, form: str) -> None:
    """Also in those that write text or calls, not both."""
    async with kv.Context.open(toolless, capacity=4096, threads=1, call_format=form) as ctx:
        branch = await ctx.branch([{"role": "system", "content": "Be brief."}, *MESSAGES], tools=[WEATHER])
        places = [
            branch.text.index(text) for text in ("Be brief.", "You can call", "How is Oslo?", "I look.", "It rains.")
        ]
        assert places == sorted(places)
        assert "Result of weather:\nIt rains.<|im_end|>" in branch.text
        assert [message.role for message in branch.messages] == ["system", "user", "assistant", "tool"]


async def test_tools_are_signatures(toolless: Path) -> None:
    async with kv.Context.open(toolless, capacity=4096, threads=1, call_format="generic") as ctx:
        branch = await ctx.branch(MESSAGES[:1], tools=[WEATHER])
        assert branch.text.startswith(
            "<|im_start|>system\nYou can call these functions:\n"
            "- weather(city: string, unit?: any, days?: array): The weather in a city.\n"
            "    city: Where.\n"
            '    unit: One of "c", "f".\n'
            '    days: {"type": "array", "items": {"type": "integer"}}\n'
            "- answer(text: string): Answers the user in words."
        )


async def test_without_tools_nothing_is_told(toolless: Path) -> None:
    async with kv.Context.open(toolless, capacity=4096, threads=1) as ctx:
        branch = await ctx.branch(MESSAGES[:1])
        assert branch.text == "<|im_start|>user\nHow is Oslo?<|im_end|>\n<|im_start|>assistant\n"
