"""A model of the OpenAI Agents SDK's in this process.

agent = Agent(name="Nano", model=agentkv.adapters.openai_agents.Model("nano"), tools=[...])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._context.context import Context
from .._types.extras import needs_extra

with needs_extra("openai-agents"):
    from agents import OpenAIResponsesModel

    from ._local import LocalModel
    from .openai import async_client


class Model(OpenAIResponsesModel):
    """A model for `agents.Agent`: streaming, parallel tools, output constrained to its schema, reasoning items,
    usage with cached tokens. A history that is sent again continues its cached branch, or a fork.

    The SDK sends traces to OpenAI where it finds a key: `agents.set_tracing_disabled(True)` keeps them here.

    Args:
        model: as `agentkv.adapters.openai.client` takes it.
        opening: options of `Context.open`, where the model is opened here: `capacity`, `speculative`, ...

    Raises:
        InvalidInput: `model` is neither a Context nor a path or name, or `Context.open` has no such option.
        WrongEventLoop: a Context of another event loop, or of trio.
    """

    def __init__(self, model: Context | str | Path, **opening: Any) -> None:
        self._local = LocalModel(model, opening)
        super().__init__(self._local.name, async_client(self._local))

    async def close(self) -> None:
        """Closes the model if it was opened here; else that happens with the process."""
        self._local.close()
