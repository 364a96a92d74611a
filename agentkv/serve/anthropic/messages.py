"""`POST /v1/messages`: a conversation in, one message out; and `/v1/messages/count_tokens`, its length."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anthropic.types import (
    Message,
    MessageDeltaUsage,
    MessageTokensCount,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
    Usage,
)
from anthropic.types.raw_message_delta_event import Delta
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from ..._context.handle import core_of, handle_of
from ..http.body import read_body
from ..http.responses import CancellableResponse, Emit, EventStream
from ..prompts import PromptBegun
from ..reply import ReplyChunk, generate_reply
from .errors import AnthropicErrors
from .events import Blocks, blocks_of, stop_of
from .messages_body import CountRequest, MessageRequest

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..completion import ReplyRequest
    from ..server import Server


def reply_request_of(server: Server, body: CountRequest) -> ReplyRequest:
    """The request, fitted to the model. Raises ApiError, also for a thinking budget that leaves no tokens for an answer
    and, on a strict server, for thinking by a model that does not reason."""
    if core_of(server.context).chat.format.thought is not None:
        body.check_budget()
        return server.checked(body.asked())
    if body.thinking is not None and body.thinking.type != "disabled":
        server.ignored.leave_out("thinking", "the model does not reason")
    if body.effort:
        server.ignored.leave_out("output_config.effort", "the model does not reason")
    return server.checked(replace(body.asked(), thinking=None, effort=None))


async def count_tokens(server: Server, request: Request) -> Response:
    """`POST /v1/messages/count_tokens`: number of prompt tokens that `usage` of the same request would report."""
    body = await read_body(server, request, CountRequest)
    reply_request, errors = reply_request_of(server, body), AnthropicErrors()

    async def counted() -> Response:
        async with server.admitted(request.headers):
            tokens = await server.tokens_of(reply_request.messages, reply_request.tools, reply_request.template)
        return JSONResponse(MessageTokensCount(input_tokens=len(tokens)).model_dump(), headers=errors.headers)

    return CancellableResponse(counted, errors)


async def create_message(server: Server, request: Request) -> Response:
    """`POST /v1/messages`: a conversation in, one message out."""
    body = await read_body(server, request, MessageRequest)
    errors = AnthropicErrors()
    message = _Message(server, body, request, errors)
    if body.stream:
        return EventStream(message.stream, errors, errors.headers)
    return CancellableResponse(message.whole, errors)


class _Message:
    """One request being answered."""

    def __init__(self, server: Server, body: MessageRequest, request: Request, errors: AnthropicErrors) -> None:
        self._server = server
        self._body = body
        self._reply_request = reply_request_of(server, body)
        self._headers = request.headers
        self._errors = errors
        self._id = f"msg_{secrets.token_hex(12)}"

    async def whole(self) -> Response:
        """Responds with the finished message."""
        async with self._server.admitted(self._headers), self._server.prompted(self._reply_request) as prompted:
            usage = _usage(len(prompted.branch), prompted.cached)
            written = await generate_reply(prompted.branch, self._reply_request)
            self._server.cache_conversation(prompted, self._reply_request, written)
        usage.output_tokens = len(written.generation.tokens)
        message = self._message(content=blocks_of(written.message), usage=usage, **stop_of(written))
        return JSONResponse(message.model_dump(mode="json", exclude_unset=True), headers=self._errors.headers)

    async def stream(self, emit: Emit) -> None:
        """Emits the message as it is generated."""

        async def send(*events: BaseModel) -> None:
            for event in events:
                await emit(event.model_dump_json(exclude_unset=True), event.type)  # type: ignore[attr-defined]

        async def begin(begun: PromptBegun) -> None:
            usage = _usage(len(begun.tokens), begun.cached)
            empty = self._message(content=[], usage=usage, stop_reason=None, stop_sequence=None)
            await send(RawMessageStartEvent(type="message_start", message=empty))

        async with (
            self._server.admitted(self._headers),
            self._server.prompted(self._reply_request, begin=begin) as prompted,
        ):
            usage = _usage(len(prompted.branch), prompted.cached)
            blocks = Blocks(handle_of(prompted.branch).state.conversation.call_id)

            async def tell(part: ReplyChunk) -> None:
                for delta in part.deltas:
                    await send(*blocks.of(delta))

            written = await generate_reply(prompted.branch, self._reply_request, tell)
            self._server.cache_conversation(prompted, self._reply_request, written)
        usage.output_tokens = len(written.generation.tokens)
        total = MessageDeltaUsage(**usage.model_dump(exclude_unset=True))
        end = RawMessageDeltaEvent(type="message_delta", delta=Delta(**stop_of(written)), usage=total)
        await send(*blocks.end(), end, RawMessageStopEvent(type="message_stop"))

    def _message(self, **more: Any) -> Message:
        return Message(id=self._id, type="message", role="assistant", model=self._body.model, **more)


def _usage(prompt: int, cached: int) -> Usage:
    """Token usage of a prompt. The protocol's `input_tokens` leaves out the cached ones, which are counted
    separately."""
    cached = min(cached, prompt)
    return Usage(
        input_tokens=prompt - cached, cache_creation_input_tokens=0, cache_read_input_tokens=cached, output_tokens=0
    )
