"""An agent of Pydantic AI's on a model of your own: the line with the model is the one that changes."""

from __future__ import annotations

from typing import Any

from nano.tools import SYSTEM, TOOLS
from pydantic_ai import Agent

import agentkv as kv
from agentkv.adapters.pydantic_ai import Model

agent = Agent(
    Model(kv.models.nano()),  # "openai:gpt-5" before
    instructions=SYSTEM,
    model_settings={"temperature": 0.0, "max_tokens": 200},
)


@agent.tool_plain
async def weather(city: str) -> dict[str, Any]:
    """weather in a city"""
    return TOOLS["weather"].run(city)


if __name__ == "__main__":
    first = agent.run_sync("What is the weather in Tolvik and in Brasno?")
    print(first.output)
    then = agent.run_sync("Who are you?", message_history=first.all_messages())
    print(then.output, f"({then.usage.cache_read_tokens} of {then.usage.input_tokens} tokens were there already)")
