"""`/v1/branches`: the verbs of a branch, for other languages. `agentkv.client` speaks it from Python."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from starlette.responses import JSONResponse, Response

from .._errors import AgentKVError
from .._mark import Mark
from . import branch_request as bodies
from .body import Body, read_body
from .branches import Held
from .event_stream import Answer, Emit, EventStream
from .openai.chat import ERRORS
from .refused import Refused, about, refused

if TYPE_CHECKING:
    from starlette.requests import Request

    from .._generation import Generation, Token
    from .server import Server

B = TypeVar("B", bound=Body)

Verb = Callable[["Server", Held, B], Awaitable[Mapping[str, Any]]]


async def create_branch(server: Server, request: Request) -> Response:
    """`POST /v1/branches`."""
    body = await read_body(server, request, bodies.Create)
    body.check()
    prompt = body.prompt(server.context.model_info.vocab_size)
    whole = _whole(request)

    async def work() -> Response:
        async with server.admitted(request.headers):
            with server.branches.room(1), about(body.given_as):
                branch = await server.with_room(
                    lambda: server.context.branch(prompt, tools=body.tools, template=body.template, overflow=server)
                )
                return JSONResponse(told(server.branches.hold(branch), whole))

    return Answer(work, ERRORS)


async def show_branch(server: Server, request: Request) -> Response:
    """`GET /v1/branches/{branch}`: all that is known of it."""
    with server.branches.using(request.path_params["branch"]) as held:
        return JSONResponse(told(held, whole=True))


async def delete_branch(server: Server, request: Request) -> Response:
    """`DELETE /v1/branches/{branch}`: what it runs ends, and its cells are free."""
    with server.branches.using(request.path_params["branch"]) as held:
        closing = held.branch.close()
        server.branches.drop(held)
        await closing
        return JSONResponse({"id": held.id, "object": "branch", "deleted": True})


async def stop_branch(server: Server, request: Request) -> Response:
    """`POST .../stop`: ends what it generates, and answers once that has ended. Waits for no place."""
    body = await read_body(server, request, bodies.Stop)
    whole = _whole(request)
    with server.branches.using(request.path_params["branch"]) as held:
        await held.stop()
        if body.length is not None and body.length < len(held.branch):
            await held.branch.rollback(body.length)
        return JSONResponse(told(held, whole))


def verb(kind: type[B], does: Verb[B]) -> Callable[[Server, Request], Awaitable[Response]]:
    """The endpoint of a verb. It answers with what the verb tells, and with the branch as it is then."""

    async def endpoint(server: Server, request: Request) -> Response:
        body = await read_body(server, request, kind)
        whole = _whole(request)

        async def work() -> Response:
            with server.branches.using(request.path_params["branch"]) as held:
                async with server.admitted(request.headers):
                    more = await does(server, held, body)
                    return JSONResponse({**told(held, whole), **more})

        return Answer(work, ERRORS)

    endpoint.__name__ = f"{does.__name__.strip('_')}_branch"
    endpoint.__doc__ = does.__doc__
    return endpoint


async def _fork(server: Server, held: Held, body: bodies.Fork) -> Mapping[str, Any]:
    """Children with the same history."""
    with server.branches.room(body.n):
        forks = await server.with_room(lambda: held.branch.fork(body.n))
        return {"forks": [told(server.branches.hold(fork, held.id), whole=False) for fork in forks]}


async def _extend(server: Server, held: Held, body: bodies.Given) -> Mapping[str, Any]:
    """Adds text, token ids or messages."""
    prompt = body.prompt(server.context.model_info.vocab_size)
    if prompt is None:
        raise Refused("invalid", "nothing to add; give text, tokens or messages", param="text")
    with about(body.given_as):
        extended = await server.with_room(lambda: held.branch.extend(prompt, template=body.template))
    return {"extended": asdict(extended)}


async def _rollback(server: Server, held: Held, body: bodies.Rollback) -> Mapping[str, Any]:
    """Forgets what came after a length or a mark."""
    branch = held.branch
    given = [each for each in (body.length, body.name, body.mark) if each is not None]
    if len(given) != 1:
        raise Refused("invalid", "give one of length, name and mark", param="length")
    to: Mark | int
    if body.name is not None:
        if body.name not in branch.marks:
            raise Refused("invalid", f"there is no mark {body.name!r}", "invalid_rollback", "name")
        to = branch.marks[body.name]
    elif body.mark is not None:
        length, _, epoch = body.mark.partition(":")
        to = Mark(branch.id, int(length), branch._history.owner, int(epoch))
    else:
        assert body.length is not None
        to = body.length
    await server.with_room(lambda: branch.rollback(to))
    return {}


async def _mark(server: Server, held: Held, body: bodies.Mark) -> Mapping[str, Any]:
    """Gives the present end a name."""
    held.branch.mark(body.name)
    return {}


async def _adopt(server: Server, held: Held, body: bodies.Adopt) -> Mapping[str, Any]:
    """Takes over the history of another branch."""
    with server.branches.using(body.other) as other:
        await server.with_room(lambda: held.branch.adopt(other.branch))
    return {}


async def _select(server: Server, held: Held, body: bodies.Select) -> Mapping[str, Any]:
    """The likeliest of some continuations."""
    choice = await server.with_room(lambda: held.branch.select(body.choices))
    chosen = {"text": choice.text, "index": choice.index, "logprob": choice.logprob, "logprobs": choice.logprobs}
    return {"choice": chosen}


fork_branch = verb(bodies.Fork, _fork)
extend_branch = verb(bodies.Given, _extend)
roll_back_branch = verb(bodies.Rollback, _rollback)
mark_branch = verb(bodies.Mark, _mark)
adopt_branch = verb(bodies.Adopt, _adopt)
select_branch = verb(bodies.Select, _select)


async def generate_on_branch(server: Server, request: Request) -> Response:
    """`POST .../generate`. A client that hangs up ends it; tokens that were made stay, of a stream those sent, or with
    `keep: "made"` all."""
    body = await read_body(server, request, bodies.Generate)
    how, whole = body.how(), _whole(request)
    name = request.path_params["branch"]

    async def generated(held: Held) -> Mapping[str, Any]:
        return _generation(await held.branch.generate(**how, output_retries=0))

    async def streamed(held: Held, emit: Emit) -> Mapping[str, Any]:
        async with held.branch.stream(**how, keep=body.keep) as tokens:
            await emit(json.dumps({"length": len(held.branch)}), "begin")
            async for token in tokens:
                await emit(json.dumps(_token(token)), "token")
        return _generation(tokens.generation)

    async def run(made: Callable[[Held], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
        with server.branches.using(name) as held:
            scope, ended = anyio.CancelScope(), anyio.Event()
            held.running[scope] = ended
            try:
                with scope:
                    async with server.admitted(request.headers):
                        return {"generation": await made(held)} | told(held, whole)
            finally:
                del held.running[scope]
                ended.set()
            raise Refused("conflict", "the generation was stopped", "stopped")

    async def work() -> Response:
        return JSONResponse(await run(generated))

    async def stream(emit: Emit) -> None:
        await emit(json.dumps(await run(lambda held: streamed(held, emit))), "generation")

    return EventStream(stream, ERRORS) if body.stream else Answer(work, ERRORS)


def told(held: Held, whole: bool) -> dict[str, Any]:
    """A branch, as clients read it; with `whole` its tokens and messages, too."""
    branch = held.branch
    length, epoch = branch._history.end
    branch_told: dict[str, Any] = {
        "id": held.id,
        "object": "branch",
        "number": branch.id,
        "parent": held.parent,
        "length": length,
        "reused": branch.reused,
        "mark": f"{length}:{epoch}",
        "marks": {name: mark.length for name, mark in branch.marks.items()},
    }
    if whole:
        branch_told |= {
            "tokens": branch.tokens,
            "text": branch.text,
            "messages": [asdict(message) for message in branch.messages],
        }
    return branch_told


def _generation(generation: Generation[Any]) -> dict[str, Any]:
    value, fault = None, None
    try:
        value = generation.output
    except AgentKVError as error:
        fault = refused(error)
    generated: dict[str, Any] = {
        "text": generation.text,
        "tokens": generation.tokens,
        "logprobs": generation.logprobs,
        "finish_reason": generation.finish_reason,
        "usage": asdict(generation.usage),
        "seed": generation.seed,
        "top_logprobs": [[top._asdict() for top in place] for place in generation.top_logprobs],
        "output": value,
        "output_error": None if fault is None else {"code": fault.code, "message": fault.message},
    }
    return generated


def _token(token: Token) -> dict[str, Any]:
    told = {"id": token.id, "text": token.text, "logprob": token.logprob, "index": token.index}
    return told | {"top_logprobs": [top._asdict() for top in token.top_logprobs]}


def _whole(request: Request) -> bool:
    """Is the whole branch to be told? Raises Refused for query parameters that mean nothing."""
    for name, value in request.query_params.items():
        if (name, value) != ("whole", "true"):
            raise Refused("invalid", "the only parameter here is whole=true", "unsupported_parameter", name)
    return "whole" in request.query_params
