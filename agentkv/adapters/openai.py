"""OpenAI's own client on a model in this process: no server, no socket, and histories matched to branches.

client = agentkv.adapters.openai.client("nano")
answer = await client.chat.completions.create(model="nano", messages=[...])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._context.context import Context
from .._types.extras import needs_extra

with needs_extra("openai"):
    import httpx2
    from openai import AsyncOpenAI, OpenAI

    from ._asgi import AsyncTransport, Transport
    from ._local import LocalModel

OPTIONS: dict[str, Any] = {"base_url": "http://agentkv.invalid/v1", "api_key": "none", "max_retries": 0}


def client(model: Context | str | Path, **opening: Any) -> AsyncOpenAI:
    """Makes an asyncio client for all that `agentkv serve` answers: chat completions, responses, completions.

    Args:
        model: an open Context of the running event loop; or a model as `Context.open` takes it, which is opened in a
            thread of its own with the first request, and closed with the client or the process.
        opening: options of `Context.open`, where the model is opened here: `capacity`, `speculative`, ...

    Raises:
        InvalidInput: `model` is neither, or `Context.open` has no such option.
        WrongEventLoop: a Context of another event loop, or of trio.
    """
    return async_client(LocalModel(model, opening))


def blocking_client(model: Context | str | Path, **opening: Any) -> OpenAI:
    """Makes a client for code that does not await. Over an open Context, call it on other threads than the event
    loop's."""
    return sync_client(LocalModel(model, opening))


def async_client(local: LocalModel) -> AsyncOpenAI:
    """Makes an asyncio client whose closing closes the model. It has no timeout of its own; callers may set one."""
    transport = AsyncTransport(local.async_door, local.close)
    return AsyncOpenAI(http_client=httpx2.AsyncClient(transport=transport), timeout=None, **OPTIONS)


def sync_client(local: LocalModel) -> OpenAI:
    """Makes a blocking client whose closing closes the model."""
    return OpenAI(http_client=httpx2.Client(transport=Transport(local.door, local.close)), timeout=None, **OPTIONS)
