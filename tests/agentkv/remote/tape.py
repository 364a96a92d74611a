"""A server that answers from a tape: what a real server said to the same requests. `python -m tests.vllm.record` makes
one from vLLM, which no test of `make test` can start; the answers can be changed before they are told."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentkv.serve.http.listener import listener
from tests.waiting import PATIENCE

VLLM_TAPE = Path(__file__).parent / "recorded" / "vllm.json"


class Answer(NamedTuple):
    """`body` is in latin-1, as bytes go into JSON."""

    status: int
    headers: dict[str, str]
    body: str


class Tape:
    """`answers` by request. With `source`, the root of a server, what is not there yet is asked there."""

    def __init__(self, answers: dict[str, Answer] | None = None, source: str | None = None) -> None:
        self.answers = answers if answers is not None else {}
        self.source = source
        self.change: Callable[[str, bytes], bytes] = lambda request, body: body
        self.compress = False
        self.url = ""

    @staticmethod
    def read(path: Path) -> Tape:
        return Tape({request: Answer(*answer) for request, answer in json.loads(path.read_text()).items()})

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.answers, indent=0) + "\n")

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        key = f"{request.method} {request.url.path} {body.decode()}"
        if key not in self.answers:
            self.answers[key] = await self._asked(request, body)
        status, headers, text = self.answers[key]
        told = self.change(key, text.encode("latin-1"))
        if self.compress:
            told, headers = gzip.compress(told), {**headers, "content-encoding": "gzip"}
        return Response(told, status, headers)

    async def _asked(self, request: Request, body: bytes) -> Answer:
        if self.source is None:
            return Answer(500, {}, "this is not on the tape")
        async with httpx.AsyncClient(base_url=self.source, timeout=PATIENCE) as http:
            told = await http.request(request.method, request.url.path, content=body, headers={**_JSON})
        kept = {name: value for name, value in told.headers.items() if name in ("content-type", "x-cached")}
        return Answer(told.status_code, kept, told.content.decode("latin-1"))


_JSON = {"content-type": "application/json"}


@asynccontextmanager
async def played(tape: Tape) -> AsyncIterator[Tape]:
    """It listens at `tape.url`."""
    app = Starlette(routes=[Route("/{path:path}", tape.answer, methods=["GET", "POST"])])
    bound = socket.create_server(("127.0.0.1", 0))
    server = listener(app)
    tape.url = "http://{}:{}".format(*bound.getsockname())
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: server.serve(sockets=[bound]))
        try:
            yield tape
        finally:
            server.should_exit = True


async def session(ctx: Any, question: list[dict[str, str]]) -> dict[str, Any]:
    """All that a server is asked: what the tape holds, and what came of it."""
    import agentkv as kv

    trunk = await ctx.branch(question)
    await trunk.draw_as(5)
    await trunk.rollback(len(trunk))
    said: dict[str, Any] = {"prompt": trunk.tokens}
    mark = trunk.mark()
    said["greedy"] = _of(await trunk.generate(max_tokens=24, top_logprobs=3))
    await trunk.rollback(mark)
    hot = kv.Sampling(temperature=1.2, top_k=40, seed=9, logit_bias={2: -20})
    said["drawn"] = _of(await trunk.generate(max_tokens=12, sampling=hot, stop=["zzz"]))
    await trunk.rollback(mark)
    async with trunk.stream(max_tokens=6) as tokens:
        said["stream"] = [token.id async for token in tokens if token.id >= 0]
    await trunk.rollback(mark)
    said["typed"] = (await trunk.generate(output=kv.Regex("[0-9]{3}"), max_tokens=8)).text
    await trunk.rollback(mark)
    said["select"] = list((await trunk.select(["yes", "no", "I"])).logprobs)
    row = await trunk.logits()
    said["logits"] = sorted((-float(row[i]), int(i)) for i in row.argsort()[-5:])
    long = await ctx.branch([7 + i % 200 for i in range(300)])  # long enough to be sent ahead
    said["long"] = len(long)
    for branch in (trunk, long):
        branch.close()
    return said


def _of(generation: Any) -> list[Any]:
    tops = [[top.id for top in place] for place in generation.top_logprobs or ()]
    return [generation.tokens, generation.logprobs, generation.text, generation.finish_reason, tops]
