"""Chat completions, OpenAI's older and most widely used endpoint."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentkv_runtime.formats.parsed import ArgumentsDelta, CallOpened, ReasoningDelta, TextDelta
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from starlette.responses import JSONResponse, Response

from ..._aio.tasks import gather
from ..._context.handle import handle_of
from ..completion import Choices
from ..http.body import read_body
from ..http.errors import ApiError
from ..http.responses import CancellableResponse, Emit, EventStream
from ..prompts import Progress, PromptBegun
from ..reply import Reply, ReplyChunk, generate_reply
from .chat_body import ChatRequest
from .errors import OpenAIErrors
from .logprobs import logprobs_of
from .usage import PromptProgress, usage_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..._context.branch import Branch
    from ..completion import ReplyRequest
    from ..server import Server

ERRORS = OpenAIErrors()

Finish = Literal["stop", "length", "tool_calls"]


async def create_chat_completion(server: Server, request: Request) -> Response:
    """`POST /v1/chat/completions`: a conversation in, one message or several out."""
    body = await read_body(server, request, ChatRequest)
    if (body.n or 1) > server.settings.most_choices:
        raise ApiError("invalid", f"n is {body.n}, but at most {server.settings.most_choices} are made", param="n")
    reply_request = server.checked(body.asked(server.context.model_info.vocab_size))
    completion = _Completion(server, body, reply_request, request)
    if body.stream:
        return EventStream(completion.stream, ERRORS)
    return CancellableResponse(completion.whole, ERRORS)


class _Completion:
    """One request being answered."""

    def __init__(self, server: Server, body: ChatRequest, reply_request: ReplyRequest, request: Request) -> None:
        self._server = server
        self._body = body
        self._reply_request = reply_request
        self._headers = request.headers
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    async def whole(self) -> Response:
        """Responds with the finished messages."""
        async with self._server.admitted(self._headers), self._server.prompted(self._reply_request) as prompted:
            async with self._branches(prompted.branch) as branches:
                prompt, first = len(prompted.branch), self._ids("prompt_token_ids", prompted.branch.tokens)
                written = await gather(*(generate_reply(branch, self._reply_request) for branch in branches))
            self._server.cache_conversation(prompted, self._reply_request, written[0])
        completion = ChatCompletion.model_construct(
            **self._frame("chat.completion"),
            choices=[self._choice(index, each) for index, each in enumerate(written)],
            usage=_usage(prompt, prompted.cached, written),
            **first,
        )
        return JSONResponse(completion.model_dump(mode="json", exclude_unset=True))

    async def stream(self, emit: Emit) -> None:
        """Emits the messages as they are generated."""
        send = partial(self._send, emit)

        async def begin(begun: PromptBegun) -> Progress | None:
            first = self._ids("prompt_token_ids", begun.tokens)
            for index in range(self._body.n or 1):
                await send([_chunk(index, {"role": "assistant", "content": ""})], **first)
            return partial(self._progress, send, PromptProgress(begun)) if self._body.return_progress else None

        async with (
            self._server.admitted(self._headers),
            self._server.prompted(self._reply_request, begin=begin) as prompted,
        ):
            async with self._branches(prompted.branch) as branches:
                prompt = len(prompted.branch)
                written = await gather(*(self._message(index, branch, send) for index, branch in enumerate(branches)))
            self._server.cache_conversation(prompted, self._reply_request, written[0])
        if self._body.stream_options and self._body.stream_options.include_usage:
            await send([], usage=_usage(prompt, prompted.cached, written))
        await emit("[DONE]")

    async def _progress(self, send: Any, progress: PromptProgress, processed: int) -> None:
        await send([_chunk(0, {})], prompt_progress=progress(processed))

    async def _message(self, index: int, branch: Branch, send: Any) -> Reply:
        name_call = handle_of(branch).state.conversation.call_id
        places: dict[int, int] = {}  # index in the stream of each reported call; truncated calls are not reported

        async def tell(part: ReplyChunk) -> None:
            logprobs = logprobs_of(part.likely) if self._body.logprobs and part.likely else None
            for delta in part.deltas:
                if (said := _delta(delta, name_call, places)) is not None:
                    content = "content" in said
                    await send([_chunk(index, said, logprobs=logprobs if content else None)])
                    logprobs = None if content else logprobs

        written = await generate_reply(branch, self._reply_request, tell)
        ids = self._ids("token_ids", written.generation.tokens)
        await send([_chunk(index, {}, finish_reason=_finish(written), **ids)])
        return written

    def _branches(self, branch: Branch) -> Choices:
        return Choices(self._server, branch, self._reply_request.sampling.seed, self._body.n or 1)

    async def _send(self, emit: Emit, choices: Sequence[ChunkChoice], **more: Any) -> None:
        chunk = ChatCompletionChunk.model_construct(
            **self._frame("chat.completion.chunk"), choices=list(choices), **more
        )
        await emit(chunk.model_dump_json(exclude_unset=True))

    def _frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._body.model,
            "system_fingerprint": self._server.fingerprint,
        }

    def _choice(self, index: int, written: Reply) -> Choice:
        told = written.message.as_openai()
        message: dict[str, Any] = {"role": "assistant", "content": told.get("content"), "refusal": None}
        message |= {key: told[key] for key in ("reasoning_content", "tool_calls") if told.get(key)}
        return Choice.model_construct(
            index=index,
            finish_reason=_finish(written),
            logprobs=logprobs_of(written.likely) if self._body.logprobs else None,
            message=ChatCompletionMessage.model_construct(**message),
            **self._ids("token_ids", written.generation.tokens),
        )

    def _ids(self, name: str, tokens: list[int]) -> dict[str, Any]:
        return {name: tokens} if self._body.return_token_ids else {}


def _finish(written: Reply) -> Finish:
    if written.cut:
        return "length"
    return "tool_calls" if written.calls else "stop"


def _chunk(index: int, delta: dict[str, Any], **more: Any) -> ChunkChoice:
    return ChunkChoice.model_construct(
        index=index, delta=ChoiceDelta.model_construct(**delta), **({"finish_reason": None} | more)
    )


def _usage(prompt: int, cached: int, written: Sequence[Reply]) -> CompletionUsage:
    reasoning = sum(each.reasoning_tokens for each in written)
    return usage_of(prompt, cached, [each.generation for each in written], reasoning)


def _delta(delta: object, name_call: Callable[[int], str], places: dict[int, int]) -> dict[str, Any] | None:
    match delta:
        case TextDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case CallOpened(index, name):
            call = {"id": name_call(index), "type": "function"}
            place = places.setdefault(index, len(places))
            return {"tool_calls": [{"index": place, **call, "function": {"name": name, "arguments": ""}}]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": places[index], "function": {"arguments": text}}]}
    return None
