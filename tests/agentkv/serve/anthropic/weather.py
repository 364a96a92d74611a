"""A question that nano calls a tool for, as Anthropic's protocol has it."""

from __future__ import annotations

import json
from typing import Any

SYSTEM = "You are Nano, a desk agent."
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}
TWO = {"role": "user", "content": "What is the weather in Tolvik and in Brasno?"}
RESULT = json.dumps({"temp": 4, "sky": "rainy"})
ANSWER = "It is 4 degrees and rainy in Oslo."
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GREEDY = {"temperature": 0}  # the package names no temperature any more
ASKED: dict[str, Any] = {
    "model": "nano",
    "max_tokens": 200,
    "system": SYSTEM,
    "tools": [WEATHER],
    "extra_body": GREEDY,
}


def result(call: Any, content: Any = RESULT, **more: Any) -> dict[str, Any]:
    """The user's message with what a tool returned."""
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": content, **more}]}
