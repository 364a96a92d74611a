"""`/v1/branches`: the verbs of a branch, for other languages."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from starlette.responses import JSONResponse, Response

from ..._context.handle import handle_of
from ..._types.errors import AgentKVError
from ..._types.mark import Mark
from ..http.body import read_body
from ..http.errors import ApiError, error_param, to_api_error
from ..http.idempotency import Progress, respond
from ..http.leniency import checked
from . import bodies
from .registry import BranchEntry
from .steering import SteeredGeneration, until_words

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..._context.branch import Branch
    from ..._types.results import Generation, Token
    from ...agents.control import TurnControl
    from ..http.responses import Emit
    from ..server import Server

B = TypeVar("B", bound=bodies.Condition)

_DIGITS = 19  # most digits of a length
Verb = Callable[["Server", BranchEntry, B], Awaitable[Mapping[str, Any]]]


async def create_branch(server: Server, request: Request) -> Response:
    """`POST /v1/branches`: creates a branch, empty or with a prompt."""
    body = await read_body(server, request, bodies.Create)
    body.check()
    prompt = body.prompt(server.context.model_info.vocab_size)
    whole = _whole(request)

    async def work(emit: Emit) -> None:
        async with server.admitted(request.headers):
            with server.branches.room(1, [body.name] if body.name else []), error_param(body.given_as):
                branch = await server.with_room(
                    lambda: server.context.branch(
                        prompt, tools=body.tools, template=body.template, overflow=server, adapter=server.adapter
                    )
                )
                made = branch_json(server.branches.add(branch, name=body.name, lease=body.lease), whole)
        await emit(json.dumps(made))

    return respond(server.branches.answers, request, body, work)


async def list_branches(server: Server, request: Request) -> Response:
    """`GET /v1/branches`: branches whose names clients chose."""
    listed = [branch_json(entry, whole=False) for entry in server.branches.named()]
    return JSONResponse({"object": "list", "data": listed})


async def show_branch(server: Server, request: Request) -> Response:
    """`GET /v1/branches/{branch}`: a branch with its tokens, text and messages."""
    with server.branches.using(request.path_params["branch"]) as entry:
        return JSONResponse(branch_json(entry, whole=True))


async def delete_branch(server: Server, request: Request) -> Response:
    """`DELETE /v1/branches/{branch}`: closes a branch, ends what it generates and frees its cells.

    `if_length` and `if_mark` are query parameters.
    """
    condition = _condition(server, request)

    async def work(emit: Emit) -> None:
        with server.branches.using(request.path_params["branch"]) as entry:
            with entry.exclusive(condition, changes=False, progress=Progress()):
                closing = entry.branch.close()
                server.branches.drop(entry)
            await emit(json.dumps({"id": entry.id, "object": "branch", "deleted": True}))
            await closing

    return respond(server.branches.answers, request, None, work)


async def stop_branch(server: Server, request: Request) -> Response:
    """`POST .../stop`: ends the branch's generation and responds once it has ended. Needs no admission."""
    body = await read_body(server, request, bodies.StopBody)
    whole, progress = _whole(request), Progress()

    async def work(emit: Emit) -> None:
        with server.branches.using(request.path_params["branch"]) as entry:
            await entry.stop()
            with entry.exclusive(bodies.Condition(), changes=True, progress=progress):
                if body.length is not None and body.length < len(entry.branch):
                    await entry.branch.rollback(body.length)
                stopped = branch_json(entry, whole)
            await emit(json.dumps(stopped))

    return respond(server.branches.entry(request.path_params["branch"]).answers, request, body, work, progress)


def verb(kind: type[B], does: Verb[B], *, changes: bool = False) -> Callable[[Server, Request], Awaitable[Response]]:
    """Makes the endpoint of a verb; `changes` says whether the verb changes the branch. The answer joins the branch's
    JSON after the verb with the verb's own fields."""

    async def endpoint(server: Server, request: Request) -> Response:
        body = await read_body(server, request, kind)
        whole, progress = _whole(request), Progress()

        async def work(emit: Emit) -> None:
            with server.branches.using(request.path_params["branch"]) as entry:
                async with server.admitted(request.headers):
                    with entry.exclusive(body, changes, progress):
                        more = await does(server, entry, body)
                        done = {**branch_json(entry, whole), **more}
            await emit(json.dumps(done))

        return respond(server.branches.entry(request.path_params["branch"]).answers, request, body, work, progress)

    endpoint.__name__ = f"{does.__name__.strip('_')}_branch"
    endpoint.__doc__ = does.__doc__
    return endpoint


async def _fork(server: Server, entry: BranchEntry, body: bodies.Fork) -> Mapping[str, Any]:
    """Forks a branch; the children have its history."""
    count = body.count
    with server.branches.room(count, body.names or ()):
        forks = await server.with_room(lambda: entry.branch.fork(count))
        lease = body.lease or entry.lease
        made = [
            server.branches.add(fork, name=name, parent=entry.id, lease=lease)
            for fork, name in zip(forks, body.names or repeat(None), strict=False)
        ]
        return {"forks": [branch_json(fork, whole=False) for fork in made]}


async def _extend(server: Server, entry: BranchEntry, body: bodies.Extend) -> Mapping[str, Any]:
    """Adds text, token ids or messages to a branch."""
    prompt = body.prompt(server.context.model_info.vocab_size)
    if prompt is None:
        raise ApiError("invalid", "nothing to add; give text, tokens or messages", param="text")
    with error_param(body.given_as):
        extended = await server.with_room(lambda: entry.branch.extend(prompt, template=body.template))
    return {"extended": asdict(extended)}


async def _rollback(server: Server, entry: BranchEntry, body: bodies.Rollback) -> Mapping[str, Any]:
    """Rolls a branch back to a length or a mark."""
    branch = entry.branch
    given = [each for each in (body.length, body.name, body.mark) if each is not None]
    if len(given) != 1:
        raise ApiError("invalid", "give one of length, name and mark", param="length")
    to: Mark | int
    if body.name is not None:
        if body.name not in branch.marks:
            raise ApiError("invalid", f"there is no mark {body.name!r}", "invalid_rollback", "name")
        to = branch.marks[body.name]
    elif body.mark is not None:
        length, _, epoch = body.mark.partition(":")
        to = Mark(branch.id, int(length), handle_of(branch).state.mark_scope, int(epoch))
    else:
        assert body.length is not None
        to = body.length
    await server.with_room(lambda: branch.rollback(to))
    return {}


async def _mark(server: Server, entry: BranchEntry, body: bodies.MarkBody) -> Mapping[str, Any]:
    """Names the present end of a branch."""
    entry.branch.mark(body.name)
    return {}


async def _adopt(server: Server, entry: BranchEntry, body: bodies.Adopt) -> Mapping[str, Any]:
    """Replaces a branch's history by that of another branch."""
    with server.branches.using(body.other) as other:
        await server.with_room(lambda: entry.branch.adopt(other.branch))
    return {}


async def _select(server: Server, entry: BranchEntry, body: bodies.Select) -> Mapping[str, Any]:
    """Selects the likeliest of some continuations; the branch stays as it is."""
    choice = await server.with_room(lambda: entry.branch.select(body.choices))
    chosen = {"text": choice.text, "index": choice.index, "logprob": choice.logprob, "logprobs": choice.logprobs}
    return {"choice": chosen}


fork_branch = verb(bodies.Fork, _fork)
extend_branch = verb(bodies.Extend, _extend, changes=True)
roll_back_branch = verb(bodies.Rollback, _rollback, changes=True)
mark_branch = verb(bodies.MarkBody, _mark)
adopt_branch = verb(bodies.Adopt, _adopt, changes=True)
select_branch = verb(bodies.Select, _select)


async def generate_on_branch(server: Server, request: Request) -> Response:
    """`POST .../generate`: generates tokens on a branch, whole or as a stream.

    A client that disconnects ends the generation, unless it sent an `Idempotency-Key`. Generated tokens stay on the
    branch: of a stream those that were sent, with `keep: "made"` or a key all of them. Where words enter by `steer`, it
    goes on with another message behind them, of at most `max_tokens` as well.
    """
    body = await read_body(server, request, bodies.Generate)
    how, whole, progress = body.how(), _whole(request), Progress()
    name = request.path_params["branch"]

    async def generated(branch: Branch, control: TurnControl, emit: Emit) -> Generation[Any] | None:
        return await until_words(control, lambda: branch.generate(**how, output_retries=0))

    async def streamed(branch: Branch, control: TurnControl, emit: Emit) -> Generation[Any] | None:
        length = len(branch)  # steps of the generation go on as soon as it has begun
        async with branch.stream(**how, keep=body.keep) as tokens:
            await emit(json.dumps({"length": length}), "begin")
            with control.generating(tokens.end):
                async for token in tokens:
                    await emit(json.dumps(_token(token)), "token")
                    if control.interrupts:
                        break
        return tokens.generation

    make = streamed if body.stream else generated

    async def steered(entry: BranchEntry, emit: Emit) -> dict[str, Any]:
        async def tell(words: Mapping[str, Any]) -> None:
            if body.stream:
                await emit(json.dumps(words), "steered")

        steering = SteeredGeneration(server, entry, body.output is None, tell)
        generation = await steering.run(lambda control: make(entry.branch, control, emit))
        more = {"steered": steering.steered} if steering.steered else {}
        return {"generation": _generation(generation), **more}

    async def run(emit: Emit) -> str:
        with server.branches.using(name) as entry:
            scope, ended = anyio.CancelScope(), anyio.Event()
            entry.running[scope] = ended
            try:
                with scope:
                    async with server.admitted(request.headers):
                        with entry.exclusive(body, changes=True, progress=progress):
                            return json.dumps(await steered(entry, emit) | branch_json(entry, whole))
            finally:
                del entry.running[scope]
                ended.set()
            raise ApiError("conflict", "the generation was stopped", "stopped")

    async def work(emit: Emit) -> None:
        await emit(await run(emit), "generation" if body.stream else None)

    answers = server.branches.entry(name).answers
    return respond(answers, request, body, work, progress, stream=body.stream)


def branch_json(entry: BranchEntry, whole: bool) -> dict[str, Any]:
    """JSON of a branch; with `whole` its tokens, text and messages as well."""
    branch = entry.branch
    branch_told: dict[str, Any] = {
        "id": entry.id,
        "object": "branch",
        "number": branch.id,
        "parent": entry.parent,
        "lease": entry.lease,
        "length": len(branch),
        "reused": branch.reused,
        "mark": entry.mark,
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
        fault = to_api_error(error)
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
    """Returns whether the whole branch is wanted. Raises ApiError for other query parameters."""
    for name, value in request.query_params.items():
        if (name, value) != ("whole", "true"):
            raise ApiError("invalid", "the only parameter here is whole=true", "unsupported_parameter", name)
    return "whole" in request.query_params


def _condition(server: Server, request: Request) -> bodies.Condition:
    """Condition in the query of a request without a body. Raises ApiError."""
    query = request.query_params.items()
    given = {name: int(value) if value.isdecimal() and len(value) <= _DIGITS else value for name, value in query}
    return checked(bodies.Condition, given, server.ignored)
