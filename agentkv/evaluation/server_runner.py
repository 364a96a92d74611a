"""Runs cases against a server of OpenAI's protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from .._types.errors import InvalidInput, RemoteError
from .._types.extras import needs_extra
from ..agents.tool import Retry
from ..agents.tool_runner import text_of_error, text_of_result
from .cases import Case
from .outcome import MAX_ROUNDS, Called, Outcome
from .worlds import World

with needs_extra("serve"):
    import openai

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageFunctionToolCall

_HOPELESS = frozenset({401, 403, 404})  # all further cases would fail alike


@asynccontextmanager
async def server_runner(
    url: str, model: str, max_tokens: int, tool_choice: str, api_key: str | None = None
) -> AsyncIterator[ServerRunner]:
    """Makes a runner against a server; greedy.

    Args:
        url: base URL, as http://127.0.0.1:8080/v1.
        model: name of the model at the server.
        max_tokens: token limit of one message.
        tool_choice: "auto" or "required" for a case's first message; later messages have "auto".
        api_key: key of the server; None for none.

    Raises:
        InvalidInput: `url` is no URL.
    """
    try:
        client = openai.AsyncOpenAI(base_url=url, api_key=api_key or "none", timeout=600)
    except Exception as error:  # errors of the URL, or of the environment
        raise InvalidInput(f"no connection to {url} can be set up: {error}; it is like http://host:8080/v1") from error
    async with client:
        yield ServerRunner(client, model, max_tokens, tool_choice)


class ServerRunner:
    """Runs each case as a conversation of its own."""

    def __init__(self, client: openai.AsyncOpenAI, model: str, max_tokens: int, tool_choice: str) -> None:
        self._client = client
        self._tool_choice = tool_choice
        self._options: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0}

    async def answer(self, case: Case) -> Outcome:
        """Runs a case. Raises RemoteError where the server cannot be reached or denies access."""
        began = anyio.current_time()
        talk = _Talk(case)
        try:
            outcome = await self._answer(talk)
        except openai.APITimeoutError as error:
            outcome = replace(talk.so_far(), error=f"it took too long: {error}")
        except openai.APIConnectionError as error:
            raise RemoteError(
                f"nothing answers at {self._client.base_url}: {error.__cause__ or error}; is the server up, and is its "
                "URL like http://host:8080/v1?"
            ) from error
        except openai.APIStatusError as error:
            if error.status_code in _HOPELESS:
                raise RemoteError(f"{self._client.base_url} says: {error.message}", error.status_code) from error
            outcome = replace(talk.so_far(), error=error.message)
        return replace(outcome, seconds=anyio.current_time() - began)

    async def _answer(self, talk: _Talk) -> Outcome:
        for message in range(1 if talk.world is None else MAX_ROUNDS):
            choice: dict[str, Any] = {"tool_choice": self._tool_choice if message == 0 else "auto"}
            completion = await self._client.chat.completions.create(
                messages=talk.messages, tools=talk.tools, **self._options, **choice
            )
            if not completion.choices:
                return replace(talk.so_far(), error="the server answered without a choice")
            reply = completion.choices[0]
            talk.heard(reply.message, completion.usage.completion_tokens if completion.usage else 0)
            if not reply.message.tool_calls:
                return replace(talk.so_far(), stopped="max_message_tokens" if reply.finish_reason == "length" else None)
        return replace(talk.so_far(), stopped=None if talk.world is None else "max_rounds")


class _Talk:
    """Conversation with a server about one case."""

    def __init__(self, case: Case) -> None:
        self.world = None if case.world is None else World(case.world)
        told = case.tools if self.world is None else self.world.tools
        self.tools: Any = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in told
        ]
        self.messages: list[Any] = list(case.messages)
        self._begin = len(self.messages)
        self._calls: list[Called] = []
        self._text = ""
        self._tokens = 0

    def heard(self, message: Any, tokens: int) -> None:
        """Adds the model's message, runs its calls and adds their results."""
        self._tokens += tokens
        self._text = message.content or ""
        self.messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            called = self._run(call)
            self._calls.append(called)
            content = text_of_result(called.result) if called.error is None else text_of_error(called.error)
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    def so_far(self) -> Outcome:
        """Outcome so far."""
        raw = "\n".join(json.dumps(message, ensure_ascii=False) for message in self.messages[self._begin :])
        state = None if self.world is None else self.world.state
        return Outcome(tuple(self._calls), self._text, raw, state, self._tokens)

    def _run(self, call: ChatCompletionMessageFunctionToolCall) -> Called:
        name = call.function.name
        try:
            arguments = json.loads(call.function.arguments or "{}")
            if not isinstance(arguments, dict):
                raise ValueError("they are no object")
        except ValueError as error:
            return Called(name, {"": call.function.arguments}, error=f"bad arguments: {error}")
        if self.world is None:
            return Called(name, arguments)
        try:
            return Called(name, arguments, self.world.call(name, arguments))
        except Retry as error:
            return Called(name, arguments, error=str(error))
