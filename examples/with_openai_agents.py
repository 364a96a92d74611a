"""An agent of the OpenAI Agents SDK's on a model of your own: the line with the model is the one that changes."""

from __future__ import annotations

import json

from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
from nano.tools import SYSTEM, TOOLS

import agentkv as kv
from agentkv.adapters.openai_agents import Model


@function_tool
async def weather(city: str) -> str:
    """weather in a city"""
    return json.dumps(TOOLS["weather"].run(city))


agent = Agent(
    name="Nano",
    model=Model(kv.models.nano()),  # "gpt-5" before
    instructions=SYSTEM,
    tools=[weather],
    model_settings=ModelSettings(temperature=0.0, max_tokens=200),
)
HERE = RunConfig(tracing_disabled=True)  # the SDK would send traces to OpenAI, where it finds a key

if __name__ == "__main__":
    first = Runner.run_sync(agent, "What is the weather in Tolvik and in Brasno?", run_config=HERE)
    print(first.final_output)
    asked = [*first.to_input_list(), {"role": "user", "content": "Who are you?"}]
    then = Runner.run_sync(agent, asked, run_config=HERE)
    usage = then.context_wrapper.usage
    print(
        then.final_output,
        f"({usage.input_tokens_details.cached_tokens} of {usage.input_tokens} tokens were there already)",
    )
