"""A model of Pydantic AI's in this process.

agent = Agent(agentkv.adapters.pydantic_ai.Model("nano"), instructions="...", tools=[...])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._context.context import Context
from .._types.extras import needs_extra

with needs_extra("pydantic-ai"):
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer, OpenAIModelProfile
    from pydantic_ai.providers import Provider
    from pydantic_ai.settings import ModelSettings

    from ._local import LocalModel
    from .openai import async_client

_PROFILE = OpenAIModelProfile(
    json_schema_transformer=OpenAIJsonSchemaTransformer,  # objects have only the schema's fields
    supports_tools=True,
    supports_json_schema_output=True,
    supports_json_object_output=True,
    supports_thinking=True,
    default_structured_output_mode="native",  # a grammar enforces the schema, without an output tool
    openai_chat_thinking_field="reasoning_content",
    openai_chat_send_back_thinking_parts="field",
)


class Model(OpenAIChatModel):
    """A model for `pydantic_ai.Agent`: streaming, parallel tools, output constrained to its schema, thinking
    parts, usage with cached tokens. A history that is sent again continues its cached branch, or a fork.

    Args:
        model: as `agentkv.adapters.openai.client` takes it.
        settings: Pydantic AI's settings for all requests.
        opening: options of `Context.open`, where the model is opened here: `capacity`, `speculative`, ...

    Raises:
        InvalidInput: `model` is neither a Context nor a path or name, or `Context.open` has no such option.
        WrongEventLoop: a Context of another event loop, or of trio.
    """

    def __init__(self, model: Context | str | Path, *, settings: ModelSettings | None = None, **opening: Any) -> None:
        self._local = LocalModel(model, opening)
        super().__init__(self._local.name, provider=_InProcess(self._local), profile=_PROFILE, settings=settings)

    def close(self) -> None:
        """Closes the model if it was opened here; else that happens with the process."""
        self._local.close()


class _InProcess(Provider[AsyncOpenAI]):
    """Provider whose requests go to a client in this process."""

    def __init__(self, local: LocalModel) -> None:
        super().__init__()
        self._client = async_client(local)

    @property
    def name(self) -> str:
        """Name of the provider."""
        return "agentkv"

    @property
    def base_url(self) -> str:
        """Placeholder URL; no request goes to an address."""
        return str(self._client.base_url)

    @property
    def client(self) -> AsyncOpenAI:
        """OpenAI's client."""
        return self._client
