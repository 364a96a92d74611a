"""Choice among several servers: a request goes to the one that has its tree's prefix, as long as that has room.

Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998): every server gets
a number from its own name and the tree's root, and the highest has the tree. A server that goes away moves its own
trees alone. A server that has more than its share of what is under way gives the next request to the next one (bounded
loads: Mirrokni, Thorup and Zadimoghaddam 2018), which docs/performance.md shows the use of.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Container, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import xxhash

from .._types.info import ServerState
from .._types.log import log
from .http import ServerConnection

_LONGEST_PAUSE_S = 30.0
_FEW = 16  # running requests up to which a server always keeps its trees
_BOUND = 1.25


def share(mean: float) -> float:
    """Most requests of one server, given the mean number of requests per server."""
    return max(_FEW, _BOUND * (1 + mean))


class Replica:
    """One server, and its recent health.

    Attributes:
        running: number of its requests in flight.
        failures: number of consecutive failures.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.running = 0
        self.failures = 0
        self._again_at = 0.0
        self._requests = 0
        self._failed = 0
        self._seconds = 0.0
        self._error: str | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether the server is healthy: no failure for which a pause still runs."""
        return time.monotonic() >= self._again_at

    @property
    def state(self) -> ServerState:
        """State for users; thread-safe."""
        return ServerState(
            url=self.connection.url,
            answers=self.is_healthy,
            running=self.running,
            requests=self._requests,
            failed=self._failed,
            seconds=self._seconds,
            error=self._error,
        )

    @contextmanager
    def n_in_flight(self) -> Iterator[None]:
        """Counts one request as running, and its seconds."""
        self.running += 1
        self._requests += 1
        began = time.monotonic()
        try:
            yield
        finally:
            self.running -= 1
            self._seconds += time.monotonic() - began

    def failed(self, error: str, seconds: float | None) -> None:
        """Records a failure, and pauses the server for `seconds`, or for a time that grows with its failures."""
        self._error = error
        self._failed += 1
        self.failures += 1
        pause = 0.25 * 2 ** min(self.failures, 10) if seconds is None else seconds
        self._again_at = time.monotonic() + min(pause, _LONGEST_PAUSE_S)

    def answered(self) -> None:
        """Records a success, which ends the server's pause."""
        if self.failures:
            log.info("a server answers again", host=self.connection.host)
        self.failures = 0
        self._again_at = 0.0
        self._error = None

    def weight(self, root: int) -> int:
        """Weight of the server for a tree: the highest has the tree."""
        return xxhash.xxh3_64_intdigest(self.connection.url.encode(), seed=root)


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits for a free server."""

    root: int | None
    broken: Container[Replica]
    called: asyncio.Future[None]


class Replicas:
    """Servers of the same model."""

    def __init__(self, connections: Sequence[ServerConnection], most_running: int) -> None:
        self.all = [Replica(connection) for connection in connections]
        self._most_running = most_running
        self._waiting: deque[_Waiter] = deque()

    @asynccontextmanager
    async def acquire(self, root: int | None, broken: Container[Replica] = ()) -> AsyncIterator[Replica]:
        """Acquires a place on the tree's server, or on the next where that one is full, unhealthy or `broken`."""
        while (replica := self._pick(root, broken)) is None:
            waiter = _Waiter(root, broken, asyncio.get_running_loop().create_future())
            self._waiting.append(waiter)
            try:
                await waiter.called
            except asyncio.CancelledError:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                elif not waiter.called.cancelled():
                    self._call_next()  # it was this one's turn
                raise
        try:
            with replica.n_in_flight():
                yield replica
        finally:
            self._call_next()

    def _call_next(self) -> None:
        """Wakes the request that has waited longest among those that would find a place now."""
        for waiter in self._waiting:
            if not waiter.called.done() and self._pick(waiter.root, waiter.broken) is not None:
                self._waiting.remove(waiter)
                waiter.called.set_result(None)
                return

    def _pick(self, root: int | None, broken: Container[Replica]) -> Replica | None:
        sound = [replica for replica in self.all if replica not in broken]
        free = [replica for replica in sound if replica.running < self._most_running]
        free = [replica for replica in free if replica.is_healthy] or free
        if root is None:
            return min(free, key=lambda replica: replica.running, default=None)
        most = share(sum(replica.running for replica in self.all) / len(self.all))
        free = [replica for replica in free if replica.running < most] or free
        return max(free, key=lambda replica: replica.weight(root), default=None)
