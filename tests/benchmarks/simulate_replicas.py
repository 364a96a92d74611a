"""Agents over many replicas: a discrete-event model of prefix caches, with affinity, at random, and with an oracle.

    python tests/benchmarks/simulate_replicas.py                      # from 2 to 1,000 replicas, about 10 minutes
    python tests/benchmarks/simulate_replicas.py --replicas 2 --trees 16 ...

A replica makes a token of each of its n requests every `step + n * row` seconds, and computes a prompt's token in
`prefill` seconds, during which it makes none: what is computed for one delays all. Its cache holds so many tokens; what
was used longest ago goes first, and a branch's own tokens are of no use without its trunk.
A task is a tree: one trunk, some branches at once, and in each a chain of turns with waits for tools between them.
`tests/vllm/bench_replicas.py` measures two real servers under the same trees.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import xxhash
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agentkv.remote.replicas import share


@dataclass(frozen=True)
class Workload:
    """Tokens, counts and seconds of the tasks. `wait` is the mean of an exponential distribution."""

    trunks: int  # different ones; tasks take them by Zipf's law
    trunk: int = 2048
    branches: int = 8
    turns: int = 5
    asked: int = 60
    said: int = 80
    wait: float = 2.0


@dataclass(frozen=True)
class Machine:
    """One replica: seconds of a step, of a row in it, of a prompt's token; tokens of its cache; requests at a time."""

    step: float = 0.012
    row: float = 0.0004
    prefill: float = 0.0001
    cache: int = 400_000
    most_running: int = 64


class Replica:
    """Requests that share its time, and what its cache holds."""

    running = 0  # on all of them

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self.machine = name, machine
        self.work = 0.0  # tokens that each request got so far, on a clock of its own
        self.clock = 0.0
        self.debt = 0.0  # seconds of prompts that it has still to compute
        self.ends: list[tuple[float, int]] = []  # (work at which it is done, request)
        self.version = 0
        self._held: OrderedDict[object, int] = OrderedDict()
        self._size = 0

    @property
    def rate(self) -> float:
        """Tokens per second of each request."""
        return 1 / (self.machine.step + len(self.ends) * self.machine.row)

    def go_to(self, now: float) -> None:
        """Its requests worked until then."""
        passed = now - self.clock
        paid = min(self.debt, passed)
        self.debt -= paid
        self.work += (passed - paid) * self.rate if self.ends else 0.0
        self.clock = now

    def next_end(self) -> float:
        """When the first of its requests is done, if nothing changes."""
        return self.clock + self.debt + max(0.0, self.ends[0][0] - self.work) / self.rate

    def cached(self, parts: list[tuple[object, int]]) -> int:
        """How many tokens of a prompt, given part by part, it has; it has all of them from now on."""
        hit, whole = 0, True
        for name, size in parts:
            held = self._held.pop(name, 0)
            self._size -= held
            hit += min(held, size) if whole else 0
            whole = whole and held >= size
        for name, size in parts:
            self._held[name] = size
            self._size += size
        while self._size > self.machine.cache and len(self._held) > len(parts):
            self._size -= self._held.popitem(last=False)[1]
        return hit


Choose = Callable[[list[Replica], object], Replica]


def at_random(rng: random.Random) -> Choose:
    return lambda replicas, root: rng.choice(replicas)


def of_two(rng: random.Random) -> Choose:
    """The less loaded of two at random, which is close to the least loaded of all (Mitzenmacher 2001)."""
    return lambda replicas, root: min(rng.choice(replicas), rng.choice(replicas), key=lambda each: len(each.ends))


class Affinity:
    """Rendezvous hashing over the root, as agentkv/remote/replicas.py has it: with `bounded`, it spills to the next
    replica not only where one has its most, but where it has more than its share."""

    def __init__(self, rng: random.Random, *, bounded: bool) -> None:
        self._bounded = bounded
        self._orders: dict[object, list[Replica]] = {}
        self._else = of_two(rng)

    def __call__(self, replicas: list[Replica], root: object) -> Replica:
        if root not in self._orders:
            seed = xxhash.xxh3_64_intdigest(repr(root).encode())
            weights = [(xxhash.xxh3_64_intdigest(each.name.encode(), seed=seed), i) for i, each in enumerate(replicas)]
            self._orders[root] = [replicas[i] for _, i in heapq.nlargest(8, weights)]
        most: float = replicas[0].machine.most_running
        if self._bounded:
            most = min(most, share(Replica.running / len(replicas)))
        for replica in self._orders[root]:
            if len(replica.ends) < most:
                return replica
        return self._else(replicas, root)


@dataclass
class Outcome:
    """What a run came to."""

    asked: int = 0
    computed: int = 0
    seconds: list[float] = field(default_factory=list)
    ended: float = 0.0

    @property
    def hit_rate(self) -> float:
        return 1 - self.computed / self.asked

    def percentile(self, share: float) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def zipf(count: int, rng: random.Random) -> Iterator[int]:
    """Ranks below `count`, each as often as its inverse."""
    total = math.log(count + 1)
    while True:
        yield min(count - 1, int(math.exp(rng.random() * total)) - 1)


def simulate(
    replicas: int,
    tasks: int,
    per_second: float,
    load: Workload,
    machine: Machine,
    choose: Choose,
    oracle: bool,
    seed: int,
) -> Outcome:
    """Tasks arrive at random, so many a second on average. With an `oracle` every token is computed once, anywhere."""
    rng = random.Random(seed)
    Replica.running = 0
    servers = [Replica(f"replica-{i}", machine) for i in range(replicas)]
    everywhere = Replica("everywhere", Machine(cache=10**15))
    outcome = Outcome()
    ranks = zipf(load.trunks, rng)
    # When, order, version of the replica (-1 for a request that comes), and the (task, branch, turn) of that.
    events: list[tuple[float, int, int, tuple[int, int, int]]] = []
    roots: dict[int, int] = {}
    order, at = 0, 0.0
    for task in range(tasks):
        at += rng.expovariate(per_second)
        roots[task] = next(ranks)
        for branch in range(load.branches):
            events.append((at, order := order + 1, -1, (task, branch, 0)))
    heapq.heapify(events)
    running: dict[int, tuple[float, tuple[int, int, int]]] = {}
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == -1:
            task, branch, turn = what
            root = roots[task]
            server = choose(servers, root)
            grown = load.asked * (turn + 1) + load.said * turn
            parts: list[tuple[object, int]] = [(root, load.trunk), ((task, branch), grown)]
            prompt = load.trunk + grown
            missing = prompt - (everywhere if oracle else server).cached(parts)
            outcome.asked, outcome.computed = outcome.asked + prompt, outcome.computed + missing
            server.go_to(now)
            order += 1
            server.debt += missing * machine.prefill
            heapq.heappush(server.ends, (server.work + load.said, order))
            Replica.running += 1
            running[order] = (now, what)
        else:
            server = servers[what[0]]
            if kind != server.version:
                continue
            server.go_to(now)
            _, request = heapq.heappop(server.ends)
            Replica.running -= 1
            began, (task, branch, turn) = running.pop(request)
            outcome.seconds.append(now - began)
            outcome.ended = now
            if turn + 1 < load.turns:
                later = now + (rng.expovariate(1 / load.wait) if load.wait else 0.0)
                heapq.heappush(events, (later, order := order + 1, -1, (task, branch, turn + 1)))
        server.version += 1
        if server.ends:
            order += 1
            number = int(server.name.rpartition("-")[2])
            heapq.heappush(events, (server.next_end(), order, server.version, (number, 0, 0)))
    return outcome


def policies(seed: int) -> dict[str, tuple[Choose, bool]]:
    return {
        "affinity": (Affinity(random.Random(seed), bounded=True), False),
        "affinity, unbounded": (Affinity(random.Random(seed), bounded=False), False),
        "random": (at_random(random.Random(seed)), False),
        "oracle": (of_two(random.Random(seed)), True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 10, 100, 1000])
    parser.add_argument("--branches", type=int, default=1_000_000, help="in all, for the largest number of replicas")
    parser.add_argument(
        "--load", type=float, default=0.6, help="of what the replicas could do if they computed nothing twice"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    machine = Machine()
    table = Table(
        title=f"A trunk of 2,048 tokens, 8 branches, 5 turns each, waits of 2 s; load {given.load:g}; seed {given.seed}"
    )
    columns = ("replicas", "branches", "policy", "hit rate", "computed per request", "mean s", "p95 s")
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right")
    runs = [(count, name) for count in given.replicas for name in policies(0)]
    for count, name in track(runs, description="Simulating", console=Console(stderr=True)):
        load = Workload(trunks=max(4, 20 * count))
        tasks = max(1, min(given.branches, given.branches * count // max(given.replicas)) // load.branches)
        tasks = max(tasks, 500)
        # What a replica does in a second at 32 requests, in tokens made.
        rate = 32 / (machine.step + 32 * machine.row)
        per_second = given.load * count * rate / (load.branches * load.turns * load.said)
        choose, oracle = policies(given.seed)[name]
        outcome = simulate(count, tasks, per_second, load, machine, choose, oracle, given.seed)
        requests = len(outcome.seconds)
        table.add_row(
            f"{count:,}",
            f"{tasks * load.branches:,}",
            name,
            f"{outcome.hit_rate:.1%}",
            f"{outcome.computed / requests:,.0f}",
            f"{statistics.fmean(outcome.seconds):.2f}",
            f"{outcome.percentile(0.95):.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
