"""The network's thread: an event loop on which requests run, are sent again, and are cancelled."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from .._types.errors import AgentKVError, BranchNotFound, ContextFull, PositionsExhausted, RemoteError, StepFailed
from .._types.log import log
from .errors import Busy
from .protocol import Again, Anew, Ask, Ended, Failed, Heard, Made, Wire
from .replicas import Replica, Replicas

if TYPE_CHECKING:
    from .._types.info import ServerState
    from .http import Connection

Asked: TypeAlias = Callable[[Wire, "Connection"], Awaitable[Heard | Sequence[Heard]]]

OPENING_S = 30.0  # that a server may take to say what it serves
DRAIN_S = 1.0  # how long a server may take to end what it was to end by itself
_FULL = Ended("context_full")
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0


class Opening:
    """What is asked before all else, and may be given up by another thread than the one that waits for it."""

    def __init__(self) -> None:
        self._given_up = False
        self._asked: Future[Any] | None = None

    def give_up(self) -> None:
        """Whatever is asked, now or later, raises CancelledError."""
        self._given_up = True
        if self._asked is not None:
            self._asked.cancel()

    def wait(self, asked: Future[Any]) -> Any:
        """Its result."""
        self._asked = asked
        if self._given_up:
            asked.cancel()
        return asked.result()


class Exchange:
    """Requests, by number. All methods may be called from any thread, and none waits for the network.

    Args:
        wire: what the servers speak.
        replicas: made on the thread, from its event loop.
        retries: how often a request is sent again that got no further.
        wake: called when something came that nobody has taken yet.
        opening: what waits before that.

    `hear`, which is to be set before anything is asked, takes what comes, on the thread.
    """

    def __init__(
        self,
        wire: Wire,
        replicas: Callable[[], Replicas],
        retries: int,
        wake: Callable[[], None],
        opening: Opening,
    ) -> None:
        self.wire = wire
        self._opening = opening
        self._retries = retries
        self.hear: Callable[[int, Heard], None]
        self._wake = wake
        self._awake = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._gates: dict[int, asyncio.Event] = {}
        self._deaf: set[int] = set()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="agentkv-net", daemon=True)
        self._thread.start()
        try:
            self._replicas = asyncio.run_coroutine_threadsafe(_called(replicas), self._loop).result()
        except BaseException:
            self._end()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._runner.close()  # with all that is still to be cleaned up

    def wait(self, work: Callable[[Wire, Replicas], Coroutine[Any, Any, Any]]) -> Any:
        """What a coroutine returns that runs there. Blocks, for the opening alone. Raises RemoteError where that takes
        too long."""

        async def run() -> Any:
            try:
                async with asyncio.timeout(OPENING_S):
                    return await work(self.wire, self._replicas)
            except TimeoutError:
                raise RemoteError(f"no server answered within {OPENING_S:g} s; is it still starting?") from None
            except AgentKVError as error:
                raise self._replicas.all[0].connection.without_key(error) from None  # they have one key

        return self._opening.wait(asyncio.run_coroutine_threadsafe(run(), self._loop))

    def servers(self) -> list[ServerState]:
        """As they are now."""
        return [replica.state for replica in self._replicas.all]

    def close(self) -> None:
        """Cancels all requests, closes all connections and ends the thread."""

        async def close() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}  # those of the opening, too
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for replica in self._replicas.all:
                with suppress(Exception):
                    await replica.connection.aclose()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result()
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def listening(self) -> None:
        """What came is about to be taken: what comes from now on wakes anew."""
        self._awake = False

    def ask(self, request: int, root: int | None, asked: Asked) -> None:
        """One request, one answer."""

        async def run() -> None:
            async def once(replica: Replica) -> None:
                told = await asked(self.wire, replica.connection)
                for heard in told if isinstance(told, tuple) and not hasattr(told, "_fields") else (told,):
                    self._tell(request, heard)

            await self._tried(request, root, once)

        self._loop.call_soon_threadsafe(self._begin, request, run)

    def generate(self, request: int, root: int | None, ask: Ask) -> None:
        """Tokens as they come. Where a connection breaks, another request goes on behind those that came; what cannot
        go on begins again, or fails where somebody has read some of it."""
        made: list[int] = []

        def goes_on() -> bool:
            if not made or self.wire.goes_on or not ask.depends_on_made:
                return True
            if not ask.read:
                made.clear()
                self._tell(request, Anew())
            return not ask.read

        async def once(replica: Replica) -> None:
            if (reason := ask.ended_with(made)) is not None:  # the connection broke before the server could say so
                if reason == "length" and ask.output is not None:
                    reason = await self._ended_whole(replica, ask.after(made))
                return self._tell(request, Ended(reason))
            async with aclosing(self.wire.generate(replica.connection, ask.after(made))) as told:
                async for heard in told:
                    if request in self._deaf and isinstance(heard, Made):
                        return  # it did not end by itself
                    if isinstance(heard, Made):
                        made.extend(heard.tokens)
                    elif heard == _FULL and len(self._replicas.all) > 1:
                        raise ContextFull(f"{replica.connection.host} has no room for more of this generation")
                    self._tell(request, heard)
                    if (gate := self._gates.get(request)) is not None:
                        await gate.wait()

        async def run() -> None:
            await self._tried(request, root, once, lambda: len(made), goes_on)

        self._loop.call_soon_threadsafe(self._begin, request, run)

    async def _ended_whole(self, replica: Replica, ask: Ask) -> str:
        """How an output ended that has all the tokens that it may have: another one shows whether it was complete."""
        try:
            async with aclosing(self.wire.generate(replica.connection, replace(ask, max_tokens=1))) as told:
                async for heard in told:
                    if isinstance(heard, Ended) and heard.reason in ("eos", "stop"):
                        return heard.reason
                    if isinstance(heard, Made | Ended):
                        break
        except (PositionsExhausted, ContextFull):  # nothing can follow
            pass
        except Busy as busy:
            if not isinstance(busy.error, ContextFull):
                raise
        return "length"

    def hold_back(self, request: int, held: bool) -> None:
        """Nothing more of a generation is read for now, or it is again."""
        self._loop.call_soon_threadsafe(self._hold_back, request, held)

    def hang_up(self, request: int, at_once: bool) -> None:
        """Ends a request; not `at_once` where it is about to end by itself."""
        self._loop.call_soon_threadsafe(self._hang_up, request, at_once)

    def _begin(self, request: int, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks[request] = self._loop.create_task(run())
        task.add_done_callback(lambda _: self._ended(request, task))

    def _ended(self, request: int, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:  # ours, or a log handler's
            self._tell(request, Failed(_known(error)))
        del self._tasks[request]
        self._gates.pop(request, None)
        self._deaf.discard(request)

    def _hold_back(self, request: int, held: bool) -> None:
        if request not in self._tasks:
            return
        if held:
            self._gates[request] = asyncio.Event()
        elif (gate := self._gates.pop(request, None)) is not None:
            gate.set()

    def _hang_up(self, request: int, at_once: bool) -> None:
        task = self._tasks.get(request)
        if task is None:
            return
        self._deaf.add(request)
        self._hold_back(request, held=False)
        if at_once:
            task.cancel()
        else:
            self._loop.call_later(DRAIN_S, task.cancel)

    async def _tried(
        self,
        request: int,
        root: int | None,
        once: Callable[[Replica], Awaitable[None]],
        progress: Callable[[], int] = lambda: 0,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Runs a request, and again while that may help; tells what it came to where it came to nothing. `goes_on` is
        called before each further attempt: False where there can be none."""
        failures, reached = 0, progress()
        broken: set[Replica] = set()  # they let nobody in, or are not well: others may be
        while True:
            try:
                async with self._replicas.place(root, broken) as replica:
                    await self._once(replica, once, broken)
                return
            except Busy as busy:
                failures = 0 if progress() > reached else failures
                failures += replica not in broken
                reached = progress()
                if failures > self._retries or request in self._deaf or not goes_on():
                    return self._tell(request, Failed(busy.error))
                log.warning("a server is asked again", host=replica.connection.host, error=str(busy), attempt=failures)
                self._tell(request, Again())
                if replica not in broken:
                    await asyncio.sleep(_pause(failures, busy.seconds, len(self._replicas.all)))
            except asyncio.CancelledError:
                raise
            except Exception as error:
                return self._tell(request, Failed(_known(error)))

    async def _once(self, replica: Replica, once: Callable[[Replica], Awaitable[None]], broken: set[Replica]) -> None:
        """One attempt. Raises Busy for what may be tried again, there or elsewhere."""
        try:
            await once(replica)
            replica.answered()
        except Busy as busy:
            replica.connection.without_key(busy)
            replica.failed(str(busy), busy.seconds)
            raise
        except (RemoteError, StepFailed, ContextFull, BranchNotFound) as error:  # another one may be well, or have it
            replica.connection.without_key(error)
            if not isinstance(error, ContextFull | BranchNotFound):
                replica.failed(str(error), None)
            broken.add(replica)
            if len(broken) < len(self._replicas.all):
                raise Busy(error) from None
            raise

    def _tell(self, request: int, heard: Heard) -> None:
        self.hear(request, heard)
        if not self._awake:
            self._awake = True
            self._wake()


async def _called(make: Callable[[], Replicas]) -> Replicas:
    return make()


def _pause(failures: int, seconds: float | None, replicas: int) -> float:
    """Seconds until the next attempt: at once the first time where there is another server."""
    if failures == 1 and replicas > 1:
        return 0.0
    longest = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
    return max(min(seconds or 0.0, _LONGEST_PAUSE_S), random.uniform(longest / 2, longest))


def _known(error: BaseException) -> Exception:
    if isinstance(error, AgentKVError):
        return error
    return RemoteError(f"a request came to nothing: {type(error).__name__}: {error}")
