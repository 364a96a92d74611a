"""`POST /v1/completions`: continues texts without messages, for raw prompts and base models."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from openai.types import Completion
from openai.types.completion_choice import CompletionChoice, Logprobs
from starlette.responses import JSONResponse, Response

from ..._aio.tasks import gather
from ..._context.handle import core_of, handle_of
from ..completion import Choices
from ..http.body import read_body
from ..http.errors import check_ids
from ..http.responses import CancellableResponse, Events, EventStream
from ..prompts import Progress, PromptBegun
from .chat import ERRORS
from .completions_body import CompletionRequest, Prompt
from .logprobs import TextLogprobs
from .sampling_body import stops_of
from .usage import PromptProgress, usage_of

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from starlette.requests import Request

    from ..._context.branch import Branch
    from ..._types.results import Generation
    from ..server import Server

Send = Callable[..., Awaitable[None]]
"""Takes the index of a choice and the fields of its next piece."""


async def create_completion(server: Server, request: Request) -> Response:
    """`POST /v1/completions`: texts in, their continuations out."""
    body = await read_body(server, request, CompletionRequest)
    body.check(server.settings.most_choices)
    for prompt in body.prompt:
        check_ids([] if isinstance(prompt, str) else prompt, server.context.model_info.vocab_size, "prompt")
    completion = _Completion(server, body, request)
    if body.stream:
        return EventStream(completion.stream, ERRORS)
    return CancellableResponse(completion.whole, ERRORS)


class _Completion:
    """One request being answered. Whole choices are the joined pieces of the streamed ones."""

    def __init__(self, server: Server, body: CompletionRequest, request: Request) -> None:
        self._server = server
        self._body = body
        self._headers = request.headers
        self._spelled = core_of(server.context).chat.token_bytes
        self._how: dict[str, Any] = {
            "max_tokens": body.max_tokens,
            "stop": stops_of(body.stop) or None,
            "sampling": body.sampling(server.context.model_info.vocab_size),
            "top_logprobs": body.logprobs or 0,
        }
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    async def whole(self) -> Response:
        """Responds with the finished texts."""
        pieces: list[list[dict[str, Any]]] = [[] for _ in range(len(self._body.prompt) * self._body.n)]

        async def keep(index: int, **piece: Any) -> None:
            pieces[index].append(piece)

        usage = await self._written(keep)
        choices = [_choice(index, **_joined(each)) for index, each in enumerate(pieces)]
        completion = self._completion(choices, usage=usage)
        return JSONResponse(completion.model_dump(mode="json", exclude_unset=True))

    async def stream(self, emit: Events) -> None:
        """Emits the texts as they are generated."""

        async def send(index: int, prompt_progress: Any = None, **piece: Any) -> None:
            progress = {} if prompt_progress is None else {"prompt_progress": prompt_progress}
            chunk = self._completion([_choice(index, **piece)], **progress)
            await emit(chunk.model_dump_json(exclude_unset=True))

        usage = await self._written(send, emit.begin)
        if self._body.stream_options and self._body.stream_options.include_usage:
            await emit(self._completion([], usage=usage).model_dump_json(exclude_unset=True))
        await emit("[DONE]")

    async def _written(self, send: Send, begin: Callable[[], Awaitable[None]] | None = None) -> CompletionUsage:
        """Generates all choices of all prompts. `begin` is called at the beginning of each prefill."""
        async with self._server.admitted(self._headers):
            made = await gather(*(self._prompt(*each, send, begin) for each in enumerate(self._body.prompt)))
        lengths, cached, generations = zip(*made, strict=True)
        return usage_of(sum(lengths), sum(cached), [each for some in generations for each in some])

    async def _prompt(
        self, number: int, prompt: Prompt, send: Send, begin: Callable[[], Awaitable[None]] | None
    ) -> tuple[int, int, Sequence[Generation[Any]]]:
        """Generates the choices of one prompt. Returns its number of tokens, how many were cached, and the
        generations."""
        n = self._body.n

        async def begun(begun: PromptBegun) -> Progress | None:
            if begin is not None:
                await begin()
            if first := self._first(prompt, begun.tokens):
                for index in range(n):
                    await send(number * n + index, **first)
            if begin is None or not self._body.return_progress:
                return None
            progress = PromptProgress(begun)
            return lambda processed: send(number * n, prompt_progress=progress(processed))

        async with self._server.begun(prompt, "prompt", begun) as prompted:
            length = len(prompted.branch)
            async with Choices(self._server, prompted.branch, self._body.seed, n) as branches:
                made = await gather(*(self._text(number * n + i, branch, send) for i, branch in enumerate(branches)))
        return length, min(prompted.cached, length), made

    async def _text(self, index: int, branch: Branch, send: Send) -> Generation[Any]:
        """Generates one choice and sends it piece by piece; the last piece has its finish reason."""
        likely = TextLogprobs(self._spelled, self._begun(branch)) if self._body.logprobs is not None else None
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
        """Fields about the prompt in a choice's first piece."""
        told = self._ids("prompt_token_ids", tokens)
        if self._body.echo:
            whole = core_of(self._server.context).chat.detokenizer.whole
            told["text"] = prompt if isinstance(prompt, str) else whole(prompt)
        return told

    def _begun(self, branch: Branch) -> bytes:
        return handle_of(branch).core.chat.detokenizer.begun(handle_of(branch).state.tokens)

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
    """Joins all pieces of a choice into one."""
    joined = {name: value for piece in pieces for name, value in piece.items()}
    joined["text"] = "".join(piece.get("text", "") for piece in pieces)
    some = [piece["logprobs"] for piece in pieces if piece.get("logprobs")]
    joined["logprobs"] = _all_logprobs(some) if some else None
    return joined


def _all_logprobs(some: Sequence[Logprobs]) -> Logprobs:
    names = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
    return Logprobs.model_validate({name: [each for one in some for each in getattr(one, name)] for name in names})
