"""Branches of a server over connections that lose what they can: each verb is done once, and where a client takes its
branch to be is where it is.

What a step does follows from the seed alone; when a limit or a loss meets it does not, and may not matter.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from uuid import UUID

import anyio
import httpx
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from .conftest import Broken
from .faulty_proxy import Fault, cut_after, hangs_up, leaves_at_once, loses_the_answer

pytestmark = pytest.mark.anyio
LONGEST = 120  # tokens of a branch


def fault(rng: random.Random) -> Fault:
    return rng.choice([loses_the_answer, leaves_at_once, hangs_up, cut_after(rng.randrange(400))])


class Twin:
    """A branch of the server, and one of this process to which the same was done."""

    def __init__(self, name: str, length: int, mark: str, here: kv.Branch) -> None:
        self.name, self.length, self.mark, self.here = name, length, mark, here


class Client:
    """As one in another language: every request has a key and a condition, and is sent until it is heard."""

    def __init__(self, http: httpx.AsyncClient, broken: Broken, rng: random.Random) -> None:
        self.http, self.broken, self.rng = http, broken, rng
        self.lost = 0

    async def send(self, method: str, path: str, body: Any = None) -> Any:
        key = str(UUID(int=self.rng.getrandbits(128)))
        self.broken.proxy.faults.extend(fault(self.rng) for _ in range(self.rng.choice([0, 0, 1, 3])))
        while True:
            try:
                answer = await self.http.request(method, path, json=body, headers={"idempotency-key": key})
            except httpx.TransportError:
                self.lost += 1
                continue
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def verb(self, twin: Twin, verb: str, **body: Any) -> Any:
        condition = self.rng.choice([{"if_length": twin.length}, {"if_mark": twin.mark}])
        told = await self.send("POST", f"/v1/branches/{twin.name}/{verb}", body | condition)
        twin.length, twin.mark = told["length"], told["mark"]
        return told


async def twins(broken: Broken, local: kv.Context, seed: int, steps: int) -> Counter[str]:
    rng, done = random.Random(seed), Counter[str]()
    async with httpx.AsyncClient(base_url=broken.proxy.url, timeout=PATIENCE) as http:
        client = Client(http, broken, rng)
        number = 0

        async def new() -> Twin:
            nonlocal number
            number += 1
            tokens = [rng.randrange(20, 900) for _ in range(5)]
            made = await client.send("POST", "/v1/branches", {"tokens": tokens, "name": f"twin-{seed}-{number}"})
            return Twin(made["id"], made["length"], made["mark"], await local.branch(tokens))

        alive = [await new(), await new()]
        for _ in range(steps):
            twin, other = rng.choice(alive), rng.choice(alive)
            verb = rng.choice(["extend", "generate", "rollback", "adopt", "fork", "delete"])
            if verb in ("extend", "generate") and twin.length > LONGEST:
                verb = "rollback"
            done[verb] += 1
            match verb:
                case "extend":
                    tokens = [rng.randrange(20, 900) for _ in range(rng.randint(1, 4))]
                    await twin.here.extend(tokens)
                    await client.verb(twin, "extend", tokens=tokens)
                case "generate":
                    generation = await twin.here.generate(max_tokens=3)
                    told = await client.verb(twin, "generate", max_tokens=3)
                    assert told["generation"]["tokens"] == generation.tokens
                case "rollback":
                    length = rng.randint(1, twin.length)
                    await twin.here.rollback(length)
                    await client.verb(twin, "rollback", length=length)
                case "adopt":
                    await twin.here.adopt(other.here)
                    await client.verb(twin, "adopt", other=other.name)
                case "fork" if len(alive) < 8:
                    number += 1
                    told = await client.verb(twin, "fork", names=[f"twin-{seed}-{number}"])
                    (fork,) = told["forks"]
                    alive.append(Twin(fork["id"], fork["length"], fork["mark"], await twin.here.fork()))
                case "delete" if len(alive) > 2:
                    alive.remove(twin)
                    await client.send("DELETE", f"/v1/branches/{twin.name}?if_mark={twin.mark}")
                    await twin.here.close()
            assert twin.length == len(twin.here)
            broken.proxy.faults.clear()
        async with httpx.AsyncClient(base_url=broken.served.url) as plain:
            for twin in alive:
                told = (await plain.get(f"/v1/branches/{twin.name}")).json()
                assert (told["tokens"], told["mark"]) == (twin.here.tokens, twin.mark)
                await plain.delete(f"/v1/branches/{twin.name}")
                await twin.here.close()
            assert (await plain.get("/v1/branches")).json()["data"] == []
        assert len(broken.served.server.branches) == 0
        done["lost"] = client.lost
    return done


class Cutter:
    """Verbs of one branch over a server, and publications of it, each with a limit that may cut it."""

    def __init__(self, ctx: kv.Context, other: kv.Context, broken: Broken, rng: random.Random) -> None:
        self.ctx, self.other, self.broken, self.rng = ctx, other, broken, rng
        self.may_be_there: list[list[int] | None] = [None]
        self.done: Counter[str] = Counter()

    async def step(self, branch: kv.Branch) -> None:
        rng = self.rng
        self.broken.proxy.faults.extend(fault(rng) for _ in range(rng.choice([0, 0, 0, 1])))
        verb = rng.choice(["extend", "generate", "rollback", "publish", "publish"])
        if len(branch) > LONGEST:
            verb = "rollback"
        tokens, before = [rng.randrange(20, 900) for _ in range(rng.randint(1, 300))], branch.tokens
        with anyio.move_on_after(rng.random() * 0.02) as limit:
            match verb:
                case "extend":
                    await branch.extend(tokens)
                case "generate":
                    await branch.generate(max_tokens=3)
                case "rollback":
                    await branch.rollback(rng.randint(1, min(len(branch), 20)))
                case "publish":
                    self.may_be_there.append(before)
                    await branch.publish("cut")
                    self.may_be_there = [before]
        self.done[f"{verb}, cut" if limit.cancelled_caught else verb] += 1
        assert verb != "publish" or branch.tokens == before
        if verb == "extend" and limit.cancelled_caught:
            assert branch.tokens == before
        self.broken.proxy.faults.clear()

    async def look(self) -> None:
        """What the server has is one of what was published since it was known, and who attaches goes on with it."""
        try:
            there = await self.other.attach("cut")
        except kv.BranchNotFound:
            assert None in self.may_be_there
            return
        assert there.tokens in self.may_be_there
        await there.close()


async def cuts(broken: Broken, local: kv.Context, seed: int, steps: int) -> Counter[str]:
    rng = random.Random(seed)
    async with (
        kv.Context.connect(broken.proxy.url, backend="agentkv", retries=50) as ctx,
        kv.Context.connect(broken.served.url, backend="agentkv") as other,
    ):
        cutter, branch = Cutter(ctx, other, broken, rng), await ctx.branch([5, 6, 7])
        for step in range(steps):
            await cutter.step(branch)
            if step % 5 == 0:
                await cutter.look()
                async with await local.branch(branch.tokens) as here, await branch.fork() as fork:
                    assert (await fork.generate(max_tokens=2)).tokens == (await here.generate(max_tokens=2)).tokens
        await branch.publish("cut")
        assert (await other.attach("cut")).tokens == branch.tokens
    async with httpx.AsyncClient(base_url=broken.served.url) as http:
        await http.delete("/v1/branches/cut")
    return cutter.done


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_verbs_are_done_once(broken: Broken, local: kv.Context) -> None:
    done = await twins(broken, local, seed=1, steps=60)
    assert done["lost"] > 10


async def test_a_branch_is_where_its_client_takes_it_to_be(broken: Broken, local: kv.Context) -> None:
    await cuts(broken, local, seed=1, steps=40)


@pytest.mark.soak
async def test_many_verbs_are_done_once(broken: Broken, local: kv.Context) -> None:
    for seed in range(100, 110):
        print(seed, dict(await twins(broken, local, seed, steps=400)))


@pytest.mark.soak
async def test_many_branches_are_where_their_clients_take_them_to_be(broken: Broken, local: kv.Context) -> None:
    for seed in range(100, 110):
        print(seed, dict(await cuts(broken, local, seed, steps=400)))
