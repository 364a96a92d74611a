"""`/v1/tokens`: token ids in, token ids out, without state between requests except the prefix cache. Protocol of
`Context.connect(..., backend="agentkv")`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from starlette.responses import JSONResponse, Response

from ..._context.generate import GenerationRequest
from ..._context.handle import core_of, handle_of
from ..._context.stream import DEFAULT_BUFFER, TokenStream
from ..._engine.commands import Job, check_finished
from ..._types.errors import InvalidInput, PositionsExhausted
from ...output._matcher import ConstraintFailed
from ..http.body import read_body
from ..http.errors import ApiError
from ..http.responses import CancellableResponse, Events, EventStream
from ..openai.chat import ERRORS
from ..prompts import NO_BRANCH, PromptBegun
from .bodies import GenerateTokens, Prompt, SelectTokens

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from ..._context.branch import Branch
    from ..server import Server

P = TypeVar("P", bound=Prompt)


async def show_facts(server: Server, request: Request) -> Response:
    """`GET /v1/tokens`: properties of the model that a client needs."""
    info = server.context.model_info
    told = {
        "names": list(server.settings.names),
        "max_positions": info.max_positions or 2**31 - 1,
        "capacity": server.context.stats.capacity,
        "vocab_size": info.vocab_size,
        "fingerprint": server.model_fingerprint,
        "bit_exact": info.bit_exact,
        "call_format": core_of(server.context).chat.call_format,
        "quantization": info.quantization,
        "cache": info.cache,
        "kv_dtype": info.kv_dtype,
        "window": info.window,
        "sinks": info.sinks,
        "quantize_after": info.quantize_after,
        "n_layers": info.n_layers,
        "n_kv_heads": info.n_kv_heads,
        "head_dim": info.head_dim,
    }
    return JSONResponse(told)


async def show_tokenizer(server: Server, request: Request) -> Response:
    """`GET /v1/tokens/tokenizer`: the files of the tokenizer."""
    folder = server.context.model_info.path
    return JSONResponse({"files": await anyio.to_thread.run_sync(_read, folder)})


async def generate_tokens(server: Server, request: Request) -> Response:
    """`POST /v1/tokens`: continuation of these tokens, as server-sent events. A client that disconnects ends it."""
    body = await _body(server, request, GenerateTokens)
    asked = GenerationRequest.checked(
        NO_BRANCH,
        core_of(server.context),
        body.options(),
        body.constraint(),
        waits_for="nothing",
        buffer=DEFAULT_BUFFER,
        n_generated=body.made,
        n_output=body.output_made,
    )
    await _check_continuation(asked, body)

    async def stream(emit: Events) -> None:
        async def begin(begun: PromptBegun) -> None:
            await emit.begin()

        async with (
            server.admitted(request.headers),
            server.begun(body.tokens, "tokens", begin) as prompted,
        ):
            branch = prompted.branch
            if body.draws is not None:
                await handle_of(branch).call(lambda engine: engine.set_stream(branch.id, body.draws or 0, 0))
            cached: dict[str, Any] = {"cached": prompted.cached}
            async with TokenStream(branch, replace(asked, branch=branch.id), DEFAULT_BUFFER, "made") as tokens:
                while batch := await tokens.batch():
                    made = [token for token in batch if token.id >= 0]
                    told = {
                        "tokens": [token.id for token in made],
                        "logprobs": [token.logprob for token in made],
                        "tops": [[top[::2] for top in token.top_logprobs] for token in made if body.top_logprobs],
                    }
                    await emit(json.dumps(told | cached))
                    cached = {}
            await emit(json.dumps({"finish_reason": tokens.generation.finish_reason} | cached))

    return EventStream(stream, ERRORS)


async def prefill_tokens(server: Server, request: Request) -> Response:
    """`POST /v1/tokens/prefill`: computes these tokens into the cache."""
    body = await _body(server, request, Prompt)

    async def work() -> Response:
        async with server.admitted(request.headers), server.begun(body.tokens, "tokens") as prompted:
            return JSONResponse({"cached": prompted.cached})

    return CancellableResponse(work, ERRORS)


async def logits_of_tokens(server: Server, request: Request) -> Response:
    """`POST /v1/tokens/logits`: logits behind these tokens, float32 in little-endian order."""
    body = await _body(server, request, Prompt)

    async def work() -> Response:
        async with server.admitted(request.headers), server.begun(body.tokens, "tokens") as prompted:
            row = await server.with_room(prompted.branch.logits)
            headers = {"x-cached": str(prompted.cached)}
            return Response(row.astype("<f4").tobytes(), headers=headers, media_type="application/octet-stream")

    return CancellableResponse(work, ERRORS)


async def select_tokens(server: Server, request: Request) -> Response:
    """`POST /v1/tokens/select`: log probabilities of continuations."""
    body = await _body(server, request, SelectTokens)

    async def work() -> Response:
        async with server.admitted(request.headers), server.begun(body.tokens, "tokens") as prompted:
            scores = await server.with_room(lambda: _scores(prompted.branch, body.choices))
            return JSONResponse({"logprobs": scores, "cached": prompted.cached})

    return CancellableResponse(work, ERRORS)


async def _body(server: Server, request: Request, shape: type[P]) -> P:
    """Reads a body. Raises ApiError, also for tokens of another model or cache: the server may have been restarted."""
    body = await read_body(server, request, shape)
    check_model(server, body.fingerprint, body.cache)
    return body


def check_model(server: Server, fingerprint: str | None, cache: str | None) -> None:
    """Raises ApiError where the client expects another model or cache configuration than the server has."""
    info = server.context.model_info
    for name, what, given, here in (
        ("fingerprint", "model", fingerprint, server.model_fingerprint),
        ("cache", "cache", cache, info.cache),
    ):
        if given not in (None, here):
            told = f"the {what} here is not the one that was connected to; connect again"
            raise ApiError("conflict", told, "other_model", name)


async def _scores(branch: Branch, choices: list[list[int]]) -> list[float]:
    def finish(finished: Any) -> list[float]:
        check_finished(finished)
        return list(finished.scores)

    return await handle_of(branch).run(Job(lambda engine: engine.select(branch.id, choices), finish))


def _read(folder: Path) -> dict[str, str]:
    from agentkv_runtime.text.tokenizer import TOKENIZER_FILES

    return {name: (folder / name).read_text("utf-8") for name in TOKENIZER_FILES if (folder / name).is_file()}


async def _check_continuation(request: GenerationRequest, body: GenerateTokens) -> None:
    """Raises ApiError, InvalidInput or PositionsExhausted where these tokens cannot be continued as requested."""
    await request.prepare()
    length, limit = len(body.tokens), request.core.context.model_info.max_positions
    if body.made > length:
        raise ApiError("invalid", f"made is {body.made}, but there are {length} tokens", "invalid_value", "made")
    if limit is not None and length >= limit:
        raise PositionsExhausted(f"{length} tokens leave no position of the model's {limit}; give less")
    constraint = request.output.constraint
    if constraint is None or not body.output_made:
        return
    try:
        request.core.compiler.compile(constraint).rule.begin().advance(list(body.tokens[-body.output_made :]))
    except ConstraintFailed as error:
        what = f"the last {body.output_made} tokens are not the beginning of such an output: {error}"
        raise InvalidInput(what) from error
