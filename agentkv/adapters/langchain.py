"""A chat model of LangChain's in this process.

model = agentkv.adapters.langchain.ChatModel("nano", temperature=0.2)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from .._context.context import Context
from .._types.extras import needs_extra

with needs_extra("langchain"):
    import httpx2
    from langchain_core.messages import BaseMessage, get_buffer_string
    from langchain_core.outputs import ChatGenerationChunk, ChatResult
    from langchain_openai import ChatOpenAI
    from openai import BaseModel

    from ._asgi import AsyncTransport, Transport
    from ._local import LocalModel
    from .openai import OPTIONS

_OPENING = inspect.signature(Context.open).parameters.keys() - {"model"}
# Options about a remote server, which there is not here.
_ELSEWHERE = frozenset(
    ["api_key", "openai_api_key", "base_url", "openai_api_base", "organization", "openai_organization", "openai_proxy"]
)
_REASONING = "reasoning_content"  # under which `AIMessage.content_blocks` finds it


class ChatModel(ChatOpenAI):
    """A chat model: `invoke`, `ainvoke`, streams, batches, `bind_tools`, `with_structured_output` with a grammar of its
    schema, reasoning blocks, usage with cached tokens. A history that is sent again continues its cached branch,
    or a fork.

    Args:
        model: as `agentkv.adapters.openai.client` takes it. Over an open Context, blocking methods must be called on
            other threads than its event loop's.
        options: of LangChain's `ChatOpenAI`: `temperature`, `max_tokens`, `seed`, `stop`, ...; options about a
            server's address and credentials are not used. Also of `Context.open`, where the model is opened here:
            `capacity`, `speculative`, ...

    Raises:
        InvalidInput: `model` is neither a Context nor a path or name.
        WrongEventLoop: a Context of another event loop, or of trio.
    """

    _local: LocalModel = PrivateAttr()

    def __init__(self, model: Context | str | Path, **options: Any) -> None:
        opening = {name: options.pop(name) for name in _OPENING & options.keys()}
        local = LocalModel(model, opening)
        in_process: dict[str, Any] = {
            "http_client": httpx2.Client(transport=Transport(local.door)),
            "http_async_client": httpx2.AsyncClient(transport=AsyncTransport(local.async_door)),
        }
        given = {name: value for name, value in options.items() if name not in _ELSEWHERE}
        super().__init__(**{"model": local.name, "stream_usage": True, **OPTIONS, **given, **in_process})
        self._local = local

    def close(self) -> None:
        """Closes the model if it was opened here; else that happens with the process."""
        self._local.close()

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text, by the model's own tokenizer."""
        return self._local.tokenizer().encode(text)

    def get_num_tokens_from_messages(self, messages: Sequence[BaseMessage], tools: Any = None, **how: Any) -> int:
        """Approximate number of tokens of messages, from their roles and texts."""
        return sum(self.get_num_tokens(get_buffer_string([message])) for message in messages)

    @property
    def _llm_type(self) -> str:
        return "agentkv"

    def _create_chat_result(
        self, response: dict[str, Any] | BaseModel, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        told = response if isinstance(response, dict) else response.model_dump(warnings=False)
        for generation, choice in zip(result.generations, told["choices"], strict=True):
            _tell(generation.message, choice["message"])
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        made = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        choices = chunk.get("choices") or chunk.get("chunk", {}).get("choices") or ()
        if made is not None and choices:
            _tell(made.message, choices[0]["delta"])
        return made


def _tell(known: BaseMessage, message: Mapping[str, Any]) -> None:
    """Adds the reasoning to a message, which LangChain omits from OpenAI's answers."""
    known.response_metadata["model_provider"] = "agentkv"
    if message.get(_REASONING):
        known.additional_kwargs[_REASONING] = message[_REASONING]
