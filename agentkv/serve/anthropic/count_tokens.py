"""`POST /v1/messages/count_tokens`: how long a conversation is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anthropic.types import MessageTokensCount
from starlette.responses import JSONResponse, Response

from ..body import read_body
from ..event_stream import Answer
from .errors import AnthropicErrors
from .message_request import CountRequest
from .thinking import asked_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..server import Server


async def count_tokens(server: Server, request: Request) -> Response:
    """The endpoint: what `usage` of the same request would say of its prompt."""
    body = await read_body(server, request, CountRequest)
    server.check_model(body.model, known="claude-")
    asked, errors = asked_of(server, body), AnthropicErrors()

    async def counted() -> Response:
        async with server.admitted(request.headers):
            tokens = await server.tokens_of(asked.messages, asked.tools, asked.template)
        return JSONResponse(MessageTokensCount(input_tokens=len(tokens)).model_dump(), headers=errors.headers)

    return Answer(counted, errors)
