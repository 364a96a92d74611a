"""`POST /tokenize` and `POST /detokenize`: texts and conversations to token ids and back, in vLLM's shapes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.responses import JSONResponse, Response

from ..._context.handle import core_of
from ..http.body import Body, read_body
from ..http.errors import ApiError, check_ids, error_param
from ..http.responses import CancellableResponse
from ..openai.chat import ERRORS
from ..openai.chat_body import AnyMessage, ChatToolBody, template_message

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..server import Server

_OF_PROMPT = {"add_special_tokens", "parse_special"}
_OF_MESSAGES = {"tools", "add_generation_prompt", "chat_template_kwargs"}


class TokenizeRequest(Body):
    """A text or a conversation to tokenize.

    `add_special_tokens` prepends the special tokens that the model expects, as `POST /v1/completions` does.
    `parse_special` (llama.cpp's name) parses control tokens in the text; turn it off for texts of others.
    """

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    parse_special: bool = True
    messages: list[AnyMessage] | None = None
    tools: list[ChatToolBody] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Raises ApiError for fields that exclude each other."""
        if (self.prompt is None) == (self.messages is None):
            raise ApiError("invalid", "give either a prompt or messages", param="prompt")
        others = _OF_MESSAGES if self.messages is None else _OF_PROMPT
        for name in sorted(others & self.model_fields_set):
            if getattr(self, name) is not None:
                goes = "messages" if name in _OF_MESSAGES else "a prompt"
                raise ApiError("invalid", f"{name} goes with {goes} alone; leave it out", param=name)


class DetokenizeRequest(Body):
    """Token ids to decode."""

    model: str | None = None
    tokens: list[int]


async def tokenize(server: Server, request: Request) -> Response:
    """`POST /tokenize`: `{"count", "max_model_len", "tokens"}`, and `token_strs` with `return_token_strs`."""
    body = await read_body(server, request, TokenizeRequest)
    body.check()

    async def answered() -> Response:
        async with server.admitted(request.headers):
            tokens = await _tokens(server, body)
        told: dict[str, Any] = {"count": len(tokens), "max_model_len": _longest(server), "tokens": tokens}
        if body.return_token_strs:
            spelled = core_of(server.context).chat.token_bytes
            told["token_strs"] = [spelled[token].decode("utf-8", "replace") for token in tokens]
        return JSONResponse(told)

    return CancellableResponse(answered, ERRORS)


async def detokenize(server: Server, request: Request) -> Response:
    """`POST /detokenize`: `{"prompt"}`, the text with its control tokens."""
    body = await read_body(server, request, DetokenizeRequest)
    check_ids(body.tokens, server.context.model_info.vocab_size, "tokens")

    async def answered() -> Response:
        decode = partial(server.context.tokenizer.decode, skip_special=False)
        async with server.admitted(request.headers):
            text = await anyio.to_thread.run_sync(decode, body.tokens, abandon_on_cancel=True)
        return JSONResponse({"prompt": text})

    return CancellableResponse(answered, ERRORS)


async def _tokens(server: Server, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        messages = [template_message(message, index) for index, message in enumerate(body.messages)]
        tools = [tool.definition() for tool in body.tools or ()]
        with error_param("messages"):
            return await server.tokens_of(messages, tools, body.chat_template_kwargs, body.add_generation_prompt)
    encode = partial(server.context.tokenizer.encode, bos=body.add_special_tokens, parse_special=body.parse_special)
    return await anyio.to_thread.run_sync(encode, body.prompt or "", abandon_on_cancel=True)


def _longest(server: Server) -> int:
    """Maximum number of tokens of a conversation: the model's positions, at most the cache's cells."""
    info = server.context.model_info
    capacity = server.context.stats.capacity
    return min(info.max_positions or capacity, capacity)
