"""What is written for `kv.Branch` runs on a server's branches, and says the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio
import httpx
import pytest
from pydantic import AfterValidator, Field

import agentkv as kv
from agentkv.client import ServerError, connect

from ..serve.conftest import Serve, Served

pytestmark = pytest.mark.anyio

WHO: list[Any] = [{"role": "user", "content": "Who are you?"}]
DRAWN = kv.Sampling(temperature=1.0, seed=5)


@dataclass
class Person:
    name: str
    age: int


OUTPUTS: list[Any] = [
    Person,
    Literal["red", "green"],
    list[int],
    kv.Regex("[0-9]{3}"),
    kv.JsonSchema({"type": "boolean"}),
    kv.Grammar('start: "a" | "b"'),
]


async def a_story(context: Any) -> list[Any]:
    """Verbs of branches, and all that they say."""
    said: list[Any] = []
    trunk = await context.branch(WHO)
    start = trunk.mark("start")
    generation = await trunk.generate(max_tokens=40, top_logprobs=2)
    said += [generation, trunk.tokens, trunk.text, trunk.messages, len(trunk), trunk.reused, trunk.parent]
    said.append(await trunk.extend([{"role": "user", "content": "What is the weather in Oslo?"}]))
    first, second = await trunk.fork(2)
    said += [first.parent is trunk, first.tokens == trunk.tokens]
    said.append((await first.generate(max_tokens=9, stop="e")).text)
    async with second.stream(max_tokens=30, sampling=kv.Sampling(temperature=0.7, seed=3)) as tokens:
        said.append([token async for token in tokens])
    said += [tokens.generation.text, second.tokens]
    await trunk.adopt(first)
    said += [trunk.tokens == first.tokens, trunk.messages, list(trunk.marks)]
    said.append(await trunk.select(["yes", "no", "perhaps"]))
    await trunk.rollback(start)
    said += [len(trunk), trunk.tokens, trunk.messages]
    for output in (
        Person,
        Literal["red", "green"],
        kv.Regex("[0-9]{3}"),
        kv.JsonSchema({"type": "boolean"}),
        list[int],
    ):
        fork = await trunk.fork()
        generation = await fork.generate(output=output, max_tokens=60)
        said.append((generation.text, generation.finish_reason))
        said.append(generation.output if generation.finish_reason != "length" else None)
        await fork.close()
    return said


async def test_a_story_is_the_same_on_a_server(served: Served) -> None:
    async with kv.Context.open(kv.models.nano(), threads=1) as ctx:
        here = await a_story(ctx)
    async with connect(served.url) as remote:
        there = await a_story(remote)
    assert len(here) == len(there)
    for mine, other in zip(here, there, strict=True):
        assert mine == other
    await served.until(lambda: not served.ctx.branches)  # leaving the block closed them


async def test_leaving_a_stream_keeps_exactly_what_was_read(served: Served) -> None:
    async with connect(served.url) as remote, await remote.branch(WHO) as branch:
        before, begun = branch.tokens, len(branch)
        read = []
        async with branch.stream(max_tokens=200, sampling=DRAWN) as tokens:
            async for token in tokens:
                read.append(token)
                if len(read) == 3:
                    break
        assert branch.tokens == before + [token.id for token in read]
        assert tokens.generation.finish_reason == "cancelled"
        assert tokens.generation.text == "".join(token.text for token in read)
        with pytest.raises(kv.OutputIncomplete):
            _ = tokens.generation.output
        rest = await branch.generate(max_tokens=4)
        assert len(branch) == begun + 3 + len(rest.tokens)
        assert served.ctx.branches[0].tokens == branch.tokens


async def test_a_generation_that_is_cancelled_leaves_the_branch_free(served: Served) -> None:
    async with connect(served.url) as remote, await remote.branch("Once") as branch:
        began = len(branch)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: branch.generate(max_tokens=7000, sampling=DRAWN, output=kv.Regex("[a-z ]{7000}")))
            await served.until(lambda: served.ctx.stats.generated > 3)
            group.cancel_scope.cancel()
        assert len(branch) > began
        assert branch.tokens == served.ctx.branches[0].tokens
        await branch.rollback(began)
        assert len(branch) == began


async def test_values_that_a_type_refuses_are_asked_for_again(served: Served) -> None:
    seen: list[int] = []

    def third(value: int) -> int:
        seen.append(value)
        if len(seen) % 3:
            raise ValueError("not yet")
        return value

    digit: Any = Annotated[int, Field(ge=0, lt=10), AfterValidator(third)]
    async with connect(served.url) as remote, await remote.branch(WHO) as branch:
        begun = len(branch)
        generation = await branch.generate(output=digit, output_retries=2)
        assert generation.output == seen[2]
        assert len(branch) == begun + len(generation.tokens)
        await branch.rollback(begun)
        with pytest.raises(kv.OutputInvalid, match="not yet"):
            await branch.generate(output=digit, output_retries=1)
        assert len(branch) == begun


async def test_errors_are_the_sdks(served: Served) -> None:
    async with connect(served.url) as remote, connect(served.url) as elsewhere:
        branch, empty = await remote.branch(WHO), await remote.branch()
        other = await elsewhere.branch(WHO)
        foreign = other.mark()
        with pytest.raises(kv.InvalidRollback):
            await branch.rollback(foreign)
        with pytest.raises(kv.InvalidRollback):
            await branch.rollback(len(branch) + 1)
        mark = branch.mark()
        await branch.rollback(mark.length - 1)
        await branch.extend([3, 4])
        with pytest.raises(kv.InvalidRollback):
            await branch.rollback(mark)
        with pytest.raises(kv.ForeignBranch):
            await branch.adopt(other)
        with pytest.raises(kv.InvalidInput):
            await empty.generate()
        with pytest.raises(kv.InvalidInput):
            await branch.extend("")
        with pytest.raises(kv.InvalidInput):
            await branch.generate(max_tokens=0)
        with pytest.raises(kv.InvalidInput):
            await branch.generate(output=kv.Grammar("nonsense"))
        with pytest.raises(kv.InvalidInput, match="cannot go to a server"):
            await branch.generate(output=_Anything())
        with pytest.raises(kv.InvalidInput, match="server's own"):
            await branch.generate(speculative=kv.spec.PromptLookup())
        with pytest.raises(kv.ContextFull):
            await branch.extend([5] * 9000)
        await branch.close()
        with pytest.raises(kv.BranchClosed):
            await branch.generate()
        await other.close()
    async with connect("http://127.0.0.1:9") as nobody:
        with pytest.raises(ServerError, match="cannot be reached"):
            await nobody.branch("x")


class _Anything:
    done = False

    def mask(self) -> Any:
        raise NotImplementedError

    def advance(self, token: int) -> None: ...

    def rollback(self, n: int) -> None: ...

    def fork(self) -> _Anything:
        return self


async def test_one_thing_at_a_time(served: Served) -> None:
    async with connect(served.url) as remote, await remote.branch("Once") as branch:
        async with branch.stream(max_tokens=7000, sampling=DRAWN, output=kv.Regex("[a-z ]{7000}")) as tokens:
            await anext(tokens)
            with pytest.raises(kv.BranchBusy):
                await branch.extend("x")
            child = await branch.fork()
            assert child.tokens[: len(branch)] == branch.tokens
            assert len(child) > 0
        await branch.extend("x")


async def test_the_key_is_asked_for(serve: Serve) -> None:
    async with serve(api_key="secret") as served:
        async with connect(served.url, "secret") as remote:
            assert len(await remote.branch("Once")) > 0
        async with connect(served.url) as stranger:
            with pytest.raises(ServerError) as refused:
                await stranger.branch("Once")
        assert refused.value.status == 401
        assert "pass api_key to connect" in str(refused.value)


async def test_a_connection_ends_with_its_block_and_takes_the_url_that_serve_prints(served: Served) -> None:
    async with connect(f"{served.url}/v1/") as remote:
        branch = await remote.branch("Once")
        assert repr(remote) == f"<Connection to {served.url}: 1 branches>"
    for verb in (branch.generate, branch.fork, lambda: remote.branch("x")):
        with pytest.raises(kv.ContextClosed, match="the connection is closed"):
            await verb()
    with pytest.raises(kv.ContextClosed):
        async with branch.stream():
            pass
    await branch.close()  # as leaving the block did


async def test_branches_are_bounded(serve: Serve) -> None:
    async with serve(most_branches=2) as served, connect(served.url) as remote:
        branch = await remote.branch("Once")
        with pytest.raises(kv.TooManyBranches):
            await branch.fork(2)
        child = await branch.fork()
        with pytest.raises(kv.TooManyBranches):
            await remote.branch("Twice")
        child.close()  # told with the next request
        assert len(await remote.branch("Twice")) > 0


async def test_a_client_that_dies_frees_the_branch(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as http:
        told = (await http.post("/v1/branches", json={"text": "Once"})).json()
        asked = {
            "max_tokens": 7000,
            "stream": True,
            "sampling": {"temperature": 1, "seed": 5},
            "output": {"type": "regex", "pattern": "[a-z ]{7000}"},
        }
        async with http.stream("POST", f"/v1/branches/{told['id']}/generate", json=asked) as response:
            async for line in response.aiter_lines():
                if line == "event: token":
                    break
    await served.until(lambda: not served.server.admission.running)
    made = served.ctx.stats.generated
    [branch] = served.ctx.branches
    assert told["length"] < len(branch) <= told["length"] + made
    steps = served.ctx.stats.steps
    await branch.extend("x")
    assert served.ctx.stats.steps == steps + 1  # nothing else ran
