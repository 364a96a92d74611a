"""`POST /v1/completions`: texts go on, without messages. The protocol that raw prompts and base models use."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from openai.types import Completion
from openai.types.completion_choice import CompletionChoice, Logprobs
from starlette.responses import JSONResponse, Response

from ..._gather import gather
from ..body import read_body
from ..choices import Choices
from ..event_stream import Answer, Emit, EventStream
from ..refused import check_ids
from .chat import ERRORS
from .completion_request import CompletionRequest, Prompt
from .sampling import stops_of
from .text_logprobs import TextLogprobs
from .usage import usage_of

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from starlette.requests import Request

    from ..._branch import Branch
    from ..._generation import Generation
    from ..server import Server

Send = Callable[..., Awaitable[None]]
"""Takes a piece of a choice: its fields."""


async def create_completion(server: Server, request: Request) -> Response:
    """The endpoint."""
    body = await read_body(server, request, CompletionRequest)
    server.check_model(body.model)
    body.check(server.settings.most_choices)
    for prompt in body.prompt:
        check_ids([] if isinstance(prompt, str) else prompt, server.context.model_info.vocab_size, "prompt")
    completion = _Completion(server, body, request)
    if body.stream:
        return EventStream(completion.stream, ERRORS)
    return Answer(completion.whole, ERRORS)


class _Completion:
    """One request under way. Whole choices are those of the stream, put together."""

    def __init__(self, server: Server, body: CompletionRequest, request: Request) -> None:
        self._server = server
        self._body = body
        self._headers = request.headers
        self._spelled = server.context._home.token_bytes
        self._how: dict[str, Any] = {
            "max_tokens": body.max_tokens,
            "stop": stops_of(body.stop) or None,
            "sampling": body.sampling(server.context.model_info.vocab_size),
            "top_logprobs": body.logprobs or 0,
        }
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    async def whole(self) -> Response:
        """The texts, once they are whole."""
        pieces: list[list[dict[str, Any]]] = [[] for _ in range(len(self._body.prompt) * self._body.n)]

        async def keep(index: int, **piece: Any) -> None:
            pieces[index].append(piece)

        usage = await self._written(keep)
        choices = [_choice(index, **_joined(each)) for index, each in enumerate(pieces)]
        completion = self._completion(choices, usage=usage)
        return JSONResponse(completion.model_dump(mode="json", exclude_unset=True))

    async def stream(self, emit: Emit) -> None:
        """The texts as they come."""

        async def send(index: int, **piece: Any) -> None:
            chunk = self._completion([_choice(index, **piece)])
            await emit(chunk.model_dump_json(exclude_unset=True))

        usage = await self._written(send)
        if self._body.stream_options and self._body.stream_options.include_usage:
            await emit(self._completion([], usage=usage).model_dump_json(exclude_unset=True))
        await emit("[DONE]")

    async def _written(self, send: Send) -> CompletionUsage:
        """Has all choices of all prompts written."""
        async with self._server.admitted(self._headers):
            made = await gather(*(self._prompt(*each, send) for each in enumerate(self._body.prompt)))
        lengths, cached, generations = zip(*made, strict=True)
        return usage_of(sum(lengths), sum(cached), [each for some in generations for each in some])

    async def _prompt(self, number: int, prompt: Prompt, send: Send) -> tuple[int, int, Sequence[Generation[Any]]]:
        """The choices of one prompt; its tokens, and those that were in the cache."""
        async with self._server.begun(prompt, "prompt") as prompted:
            length, n = len(prompted.branch), self._body.n
            async with Choices(self._server, prompted.branch, self._body.seed, n) as branches:
                first = self._first(prompt, prompted.branch.tokens)
                made = await gather(
                    *(self._text(number * n + i, branch, first, send) for i, branch in enumerate(branches))
                )
        return length, min(prompted.cached, length), made

    async def _text(self, index: int, branch: Branch, first: dict[str, Any], send: Send) -> Generation[Any]:
        """One choice, told piece by piece: what comes before, what is written, and how it ended."""
        likely = TextLogprobs(self._spelled, self._begun(branch)) if self._body.logprobs is not None else None
        if first:
            await send(index, **first)
        stream = branch.stream(**self._how, keep="made")
        async with stream as tokens:
            while batch := await tokens.batch():
                logprobs = likely.of(batch) if likely else None
                if text := "".join(token.text for token in batch):
                    await send(index, text=text, logprobs=logprobs)
        generation = stream.generation
        ended = "stop" if generation.finish_reason in ("eos", "stop") else "length"
        last = likely.of(()) if likely else None
        await send(index, finish_reason=ended, logprobs=last, **self._ids("token_ids", generation.tokens))
        return generation

    def _first(self, prompt: Prompt, tokens: list[int]) -> dict[str, Any]:
        """What a choice tells of its prompt."""
        told = self._ids("prompt_token_ids", tokens)
        if self._body.echo:
            whole = self._server.context._home.spelling.whole
            told["text"] = prompt if isinstance(prompt, str) else whole(prompt)
        return told

    def _begun(self, branch: Branch) -> bytes:
        return branch._home.spelling.begun(branch._history.log)

    def _ids(self, name: str, tokens: list[int]) -> dict[str, Any]:
        return {name: tokens} if self._body.return_token_ids else {}

    def _completion(self, choices: Sequence[CompletionChoice], **more: Any) -> Completion:
        return Completion.model_construct(
            id=self._id,
            object="text_completion",
            created=self._created,
            model=self._body.model,
            system_fingerprint=self._server.fingerprint,
            choices=list(choices),
            **more,
        )


def _choice(index: int, text: str = "", **piece: Any) -> CompletionChoice:
    return CompletionChoice.model_construct(
        index=index, text=text, **({"logprobs": None, "finish_reason": None} | piece)
    )


def _joined(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One piece of all."""
    joined = {name: value for piece in pieces for name, value in piece.items()}
    joined["text"] = "".join(piece.get("text", "") for piece in pieces)
    some = [piece["logprobs"] for piece in pieces if piece.get("logprobs")]
    joined["logprobs"] = _all_logprobs(some) if some else None
    return joined


def _all_logprobs(some: Sequence[Logprobs]) -> Logprobs:
    names = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
    return Logprobs.model_validate({name: [each for one in some for each in getattr(one, name)] for name in names})
