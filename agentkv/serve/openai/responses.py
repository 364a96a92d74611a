"""`/v1/responses`: items in, items out.

A stored response is a branch, and a request that continues it forks that branch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from openai.types.responses import (
    Response as ResponseObject,
)
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
)
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from ..._context.handle import handle_of
from ..._types.errors import TooManyBranches
from ..fitting import without_header
from ..http.body import read_body
from ..http.body_errors import unsupported
from ..http.errors import ApiError, to_api_error
from ..http.responses import CancellableResponse, Emit, Events, EventStream
from ..prompts import Begin, PromptBegun, untold
from ..reply import Reply, ReplyChunk, generate_reply
from ..server import messages_of
from .chat import ERRORS
from .items import ResponseOutput, event_of, new_id
from .responses_body import FunctionTool, NamespaceTool, ResponsesRequest

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..._context.branch import Branch
    from ..completion import ReplyRequest
    from ..conversations import CachedConversation
    from ..server import Prompted, Server


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored response, beside its branch.

    Attributes:
        response: JSON of the response as it was sent.
        items: its own input items, without those of previous responses.
        begins: instructions, tools and template that its branch begins with.
    """

    response: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    begins: ResponsePrefix


class ResponsePrefix(NamedTuple):
    """Beginning of a prompt; responses do not inherit it from previous ones."""

    instructions: str | None
    tools: Sequence[Mapping[str, Any]]
    template: Mapping[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The instructions as a system message; empty without instructions."""
        return [] if self.instructions is None else [{"role": "system", "content": self.instructions}]


def kept_as(response: str) -> str:
    """Name of a response's branch in the conversation cache."""
    return f"response:{response}"


async def create_response(server: Server, request: Request) -> Response:
    """`POST /v1/responses`: items in, items out."""
    body = await read_body(server, request, ResponsesRequest)
    items = body.items(server.ignored)
    reply_request = server.checked(body.asked(items, server.context.model_info.vocab_size))
    creation = _Creation(server, body, items, reply_request, request.headers)
    if body.stream:
        return EventStream(creation.stream, ERRORS)
    return CancellableResponse(creation.whole, ERRORS)


class _Creation:
    """One request being answered."""

    def __init__(
        self,
        server: Server,
        body: ResponsesRequest,
        items: Sequence[Mapping[str, Any]],
        reply_request: ReplyRequest,
        headers: Mapping[str, str],
    ) -> None:
        self._server = server
        self._body = body
        self._items = items
        self._reply_request = reply_request
        instructions = body.instructions and without_header(body.instructions, server.ignored)
        self._begins = ResponsePrefix(instructions, reply_request.tools, reply_request.template)
        self._headers = headers
        self._id = new_id("resp")
        self._created = int(time.time())
        self._count = 0  # number of sent events

    async def whole(self) -> Response:
        """Responds with the finished response."""
        async with self._server.admitted(self._headers), self._prompted() as prompted:
            output, prompt = self._output(prompted.branch), len(prompted.branch)
            written = await generate_reply(prompted.branch, self._reply_request)
            for part in written.parts:
                list(output.read(part))
            list(output.end(written.cut))
            response = self._ended(output, written, prompted, prompt)
            await self._keep(prompted, response, written)
        return JSONResponse(response)

    async def stream(self, emit: Events) -> None:
        """Emits the response as it is generated. Errors before the prefill are error responses, later ones a "failed"
        event."""
        try:
            await self._events(emit)
        except Exception as error:
            if not self._count:
                raise
            await self._failed(emit, to_api_error(error))

    async def _events(self, emit: Events) -> None:
        async def begin(begun: PromptBegun) -> None:
            started = self._frame("in_progress", [])
            await self._tell(emit, ResponseCreatedEvent, started)
            await self._tell(emit, ResponseInProgressEvent, started)
            emit.alive = partial(self._tell, emit, ResponseInProgressEvent, started)  # Codex counts no comments

        async with self._server.admitted(self._headers), self._prompted(begin) as prompted:
            output, prompt = self._output(prompted.branch), len(prompted.branch)

            async def tell(part: ReplyChunk) -> None:
                for event in output.read(part):
                    await self._send(emit, event)

            written = await generate_reply(prompted.branch, self._reply_request, tell)
            for event in output.end(written.cut):
                await self._send(emit, event)
            response = self._ended(output, written, prompted, prompt)
            await self._keep(prompted, response, written)
        await self._tell(emit, ResponseIncompleteEvent if written.cut else ResponseCompletedEvent, response)

    async def _failed(self, emit: Emit, told: ApiError) -> None:
        code = "rate_limit_exceeded" if told.kind == "busy" else "server_error"
        failed = self._frame("failed", [], error={"code": code, "message": told.named_message})
        await self._tell(emit, ResponseFailedEvent, failed)

    async def _tell(self, emit: Emit, kind: type[BaseModel], response: Mapping[str, Any]) -> None:
        await self._send(emit, event_of(kind, response=response))

    async def _send(self, emit: Emit, event: Any) -> None:
        event.sequence_number, self._count = self._count, self._count + 1
        await emit(event.model_dump_json(exclude_unset=True, by_alias=True), event.type)

    def _prompted(self, begin: Begin = untold) -> AbstractAsyncContextManager[Prompted]:
        """The prompted branch: it continues the previous response's branch if that begins with the same instructions,
        tools and template. Else all tokens differ, and the whole conversation is a new prompt."""
        begins, reply_request = self._begins, self._reply_request
        previous = self._body.previous_response_id
        if previous is None:
            self._reply_request = replace(reply_request, messages=[*begins.messages, *reply_request.messages])
            return self._server.prompted(self._reply_request, begin=begin)
        kept, stored = found(self._server, previous, _no_previous(previous))
        if stored.begins == begins:
            return self._server.prompted(reply_request, kept, begin)
        said = messages_of(kept.branch)[len(stored.begins.messages) :]
        anew = replace(reply_request, messages=[*begins.messages, *said, *reply_request.messages])
        return self._server.prompted(anew, begin=begin)

    def _output(self, branch: Branch) -> ResponseOutput:
        names = {
            called: {"namespace": namespace, "name": tool.name}
            for called, namespace, tool in self._body.functions()
            if namespace is not None
        }
        return ResponseOutput(handle_of(branch).state.conversation.call_id, self._body.logprobs, names)

    async def _keep(self, prompted: Prompted, response: Mapping[str, Any], written: Reply) -> None:
        """Caches the response for requests that continue it by id, and for those that send the whole conversation
        again."""
        if self._body.stored:
            stored = Stored(response, self._items, self._begins)
            try:
                kept = await self._server.with_room(prompted.branch.fork)
            except TooManyBranches:  # then it can be continued by its id only
                return prompted.keep(kept_as(self._id), promised=True, note=stored)
            self._server.cache.put(kept_as(self._id), kept, promised=True, note=stored)
        if self._body.previous_response_id is None:
            self._server.cache_conversation(prompted, self._reply_request, written)

    def _ended(self, output: ResponseOutput, written: Reply, prompted: Prompted, prompt: int) -> dict[str, Any]:
        made = len(written.generation.tokens)
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": min(prompted.cached, prompt), "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": written.reasoning_tokens},
            "total_tokens": prompt + made,
        }
        details = {"reason": "max_output_tokens"} if written.cut else None
        status = "incomplete" if written.cut else "completed"
        ended = None if written.cut else int(time.time())
        return self._frame(status, output.items, incomplete_details=details, usage=usage, completed_at=ended)

    def _frame(self, status: str, output: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        body = self._body
        fields = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": output,
            "parallel_tool_calls": self._reply_request.parallel,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "service_tier": "default",
            "store": body.stored,
            "temperature": self._reply_request.sampling.temperature,
            "text": {"format": _format(body)},
            "tool_choice": _choice(body),
            "tools": [_tool(tool) for tool in body.tools or ()],
            "top_logprobs": self._reply_request.top_logprobs,
            "top_p": self._reply_request.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }
        response = ResponseObject.model_validate(fields | more)
        return response.model_dump(mode="json", exclude_unset=True, by_alias=True)


def found(server: Server, response: str, missing: ApiError) -> tuple[CachedConversation, Stored]:
    """Looks up a stored response. Raises `missing`."""
    kept = server.cache.kept(kept_as(response))
    if kept is None:
        raise missing
    assert isinstance(kept.note, Stored)
    return kept, kept.note


def _no_previous(response: str) -> ApiError:
    what = (
        f"there is no response {response!r}: it was not stored, was deleted, or gave way to newer ones; send the whole "
        "conversation as input"
    )
    return ApiError("invalid", what, "previous_response_not_found", "previous_response_id")


def _format(body: ResponsesRequest) -> dict[str, Any]:
    form = body.text and body.text.format
    return form.model_dump(exclude_none=True, by_alias=True) if form else {"type": "text"}


def _tool(tool: FunctionTool | NamespaceTool) -> dict[str, Any]:
    told = tool.model_dump(exclude_none=True)
    return {"strict": True} | told if isinstance(tool, FunctionTool) else told


def _choice(body: ResponsesRequest) -> object:
    choice = body.tool_choice
    if choice is None:
        return "auto"
    return choice.type if choice.name is None else {"type": "function", "name": choice.name}


async def show_response(server: Server, request: Request) -> Response:
    """`GET /v1/responses/{response}`: a stored response as it was sent."""
    return JSONResponse(_stored(server, request).response)


async def delete_response(server: Server, request: Request) -> Response:
    """`DELETE /v1/responses/{response}`: deletes a stored response and frees its cells.

    Responses that continue it stay.
    """
    _stored(server, request)
    response = request.path_params["response"]
    server.cache.drop(kept_as(response))
    return JSONResponse({"id": response, "object": "response", "deleted": True})


async def list_input_items(server: Server, request: Request) -> Response:
    """`GET .../input_items`: input items of a response, without those of previous responses.

    Newest first, or by the parameters `order`, `after` and `limit`.
    """
    items = list(_stored(server, request, "order", "after", "limit").items)
    query = request.query_params
    if query.get("order", "desc") not in ("asc", "desc"):
        raise ApiError("invalid", "order must be asc or desc", param="order")
    if query.get("order", "desc") == "desc":
        items.reverse()
    if "after" in query:
        ids = [item["id"] for item in items]
        if query["after"] not in ids:
            raise ApiError("invalid", "after names no item of this response", param="after")
        items = items[ids.index(query["after"]) + 1 :]
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= 100):
        raise ApiError("invalid", "limit must be a number from 1 to 100", param="limit")
    page = items[: int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": page, "has_more": len(page) < len(items), **ends})


def _stored(server: Server, request: Request, *known: str) -> Stored:
    """The stored response of a request's path. Raises ApiError, also for unknown query parameters."""
    for name in request.query_params:
        if name not in known:
            raise unsupported(name, known)
    response = request.path_params["response"]
    missing = ApiError("missing", f"there is no response {response!r}", "response_not_found", "response_id")
    return found(server, response, missing)[1]
