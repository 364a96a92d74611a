"""A chain of LangChain's on a model of your own: the line with the model is the one that changes."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from nano.tools import SYSTEM, TOOLS

import agentkv as kv
from agentkv.adapters.langchain import ChatModel


@tool
def weather(city: str) -> dict[str, Any]:
    """weather in a city"""
    return TOOLS["weather"].run(city)


model = ChatModel(kv.models.nano(), temperature=0, max_tokens=200)  # ChatOpenAI(model="gpt-5", ...) before
desk = model.bind_tools([weather])


def ask(talk: list[AnyMessage]) -> AnyMessage:
    """The answer, once the tools that it needs were called; the conversation has all of it."""
    while True:
        talk.append(desk.invoke(talk))
        calls = talk[-1].tool_calls
        if not calls:
            return talk[-1]
        talk += weather.batch(calls)


if __name__ == "__main__":
    talk = [SystemMessage(SYSTEM), HumanMessage("What is the weather in Tolvik and in Brasno?")]
    print(ask(talk).text)
    answer = ask([*talk, HumanMessage("Who are you?")])
    usage = answer.usage_metadata
    print(answer.text, f"({usage['input_token_details']['cache_read']} of {usage['input_tokens']} tokens were there)")
