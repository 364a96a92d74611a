"""OpenAI's own client on a model in this process: no server, no socket, and histories matched to branches.

client = agentkv.adapters.openai.client("nano")
answer = await client.chat.completions.create(model="nano", messages=[...])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI, OpenAI

from .._context.context import Context
from ._asgi import AsyncTransport, Transport
from ._local import Local

OPTIONS: dict[str, Any] = {"base_url": "http://agentkv.invalid/v1", "api_key": "none", "max_retries": 0}


def client(model: Context | str | Path, **opening: Any) -> AsyncOpenAI:
    """A client for asyncio. What `agentkv serve` answers, it answers: chat completions, responses, completions.

    Args:
        model: a Context that is open, on the event loop that it is open on; or a model as `Context.open` takes it,
            which is opened in a thread of its own with the first request, and closed with the client or the process.
        opening: for `Context.open`, where it is opened here: `capacity`, `speculative`, ...

    Raises:
        InvalidInput: `model` is neither, or `opening` has what `Context.open` has not.
        WrongEventLoop: a Context of another event loop, or of trio.
    """
    return async_client(Local(model, opening))


def blocking_client(model: Context | str | Path, **opening: Any) -> OpenAI:
    """The same for code that does not await. Over an open Context it is for other threads than the event loop's."""
    return sync_client(Local(model, opening))


def async_client(local: Local) -> AsyncOpenAI:
    """Closing it closes the model. It takes the time that it takes: who asks may say how long to wait."""
    transport = AsyncTransport(local.async_door, local.close)
    return AsyncOpenAI(http_client=httpx2.AsyncClient(transport=transport), timeout=None, **OPTIONS)


def sync_client(local: Local) -> OpenAI:
    """Closing it closes the model."""
    return OpenAI(http_client=httpx2.Client(transport=Transport(local.door, local.close)), timeout=None, **OPTIONS)
