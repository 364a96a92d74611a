"""The network thread: an event loop on which requests run, are retried, and are cancelled."""

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
from .errors import RetryableError
from .protocol import (
    EndEvent,
    ErrorEvent,
    GenerateRequest,
    RestartEvent,
    RetryEvent,
    ServerEvent,
    ServerProtocol,
    TokensEvent,
)
from .replicas import Replica, Replicas

if TYPE_CHECKING:
    from .._types.info import ServerState
    from .http import ServerConnection

Send: TypeAlias = Callable[[ServerProtocol, "ServerConnection"], Awaitable[ServerEvent | Sequence[ServerEvent]]]

OPENING_S = 30.0  # seconds until a server must have reported its model
DRAIN_S = 1.0  # seconds for a server to end by itself a generation that was hung up
_FULL = EndEvent("context_full")
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0


class OpenHandshake:
    """Requests during opening, which another thread than the waiting one can cancel."""

    def __init__(self) -> None:
        self._given_up = False
        self._request: Future[Any] | None = None

    def give_up(self) -> None:
        """Cancels the current request and all later ones: they raise CancelledError."""
        self._given_up = True
        if self._request is not None:
            self._request.cancel()

    def wait(self, request: Future[Any]) -> Any:
        """Waits for a request, and returns its result. Raises CancelledError after `give_up`."""
        self._request = request
        if self._given_up:
            request.cancel()
        return request.result()


class NetworkThread:
    """Runs requests, by number. Methods are thread-safe; only `wait` and `close` block.

    Args:
        wire: protocol of the servers.
        replicas: makes the replicas, on the thread's event loop.
        retries: number of attempts without progress after the first.
        wake: called when an event arrives and `listening` was called since the last one.
        opening: waits for requests during opening.

    `on_event`, which must be set before the first request, receives events, on the thread.
    """

    def __init__(
        self,
        wire: ServerProtocol,
        replicas: Callable[[], Replicas],
        retries: int,
        wake: Callable[[], None],
        opening: OpenHandshake,
    ) -> None:
        self.wire = wire
        self._opening = opening
        self._retries = retries
        self.on_event: Callable[[int, ServerEvent], None]
        self._wake = wake
        self._is_woken = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._gates: dict[int, asyncio.Event] = {}
        self._cancelled: set[int] = set()
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
        self._runner.close()  # cancels tasks that are left, and closes the loop

    def wait(self, work: Callable[[ServerProtocol, Replicas], Coroutine[Any, Any, Any]]) -> Any:
        """Runs a coroutine on the thread, and returns its result. Blocks, so it is for opening only.

        Raises RemoteError after 30 s.
        """

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
        """Current states of the servers."""
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
        """Notes that the received events are about to be taken: the next one calls `wake` again."""
        self._is_woken = False

    def ask(self, request: int, root: int | None, send: Send) -> None:
        """Sends a request with one answer."""

        async def run() -> None:
            async def once(replica: Replica) -> None:
                answer = await send(self.wire, replica.connection)
                for event in answer if isinstance(answer, tuple) and not hasattr(answer, "_fields") else (answer,):
                    self._emit(request, event)

            await self._tried(request, root, once)

        self._loop.call_soon_threadsafe(self._begin, request, run)

    def generate(self, request: int, root: int | None, ask: GenerateRequest) -> None:
        """Sends a request for a generation, whose tokens are reported as they come.

        Where a connection breaks, another request continues after the received tokens. A generation that cannot be
        continued begins again, or fails where its tokens have been read.
        """
        received: list[int] = []

        def can_resume() -> bool:
            if not received or self.wire.can_resume or not ask.depends_on_received:
                return True
            if not ask.read:
                received.clear()
                self._emit(request, RestartEvent())
            return not ask.read

        async def once(replica: Replica) -> None:
            if (reason := ask.ended_with(received)) is not None:  # the connection broke before the server could say so
                if reason == "length" and ask.output is not None:
                    reason = await self._ended_whole(replica, ask.after(received))
                return self._emit(request, EndEvent(reason))
            async with aclosing(self.wire.generate(replica.connection, ask.after(received))) as events:
                async for event in events:
                    if request in self._cancelled and isinstance(event, TokensEvent):
                        return  # it did not end by itself
                    if isinstance(event, TokensEvent):
                        received.extend(event.tokens)
                    elif event == _FULL and len(self._replicas.all) > 1:
                        raise ContextFull(f"{replica.connection.host} has no room for more of this generation")
                    self._emit(request, event)
                    if (gate := self._gates.get(request)) is not None:
                        await gate.wait()

        async def run() -> None:
            await self._tried(request, root, once, lambda: len(received), can_resume)

        self._loop.call_soon_threadsafe(self._begin, request, run)

    async def _ended_whole(self, replica: Replica, ask: GenerateRequest) -> str:
        """Finish reason of an output that has all its tokens: generates one more to see whether it is complete."""
        try:
            async with aclosing(self.wire.generate(replica.connection, replace(ask, max_tokens=1))) as events:
                async for event in events:
                    if isinstance(event, EndEvent) and event.reason in ("eos", "stop"):
                        return event.reason
                    if isinstance(event, TokensEvent | EndEvent):
                        break
        except (PositionsExhausted, ContextFull):  # nothing can follow
            pass
        except RetryableError as busy:
            if not isinstance(busy.error, ContextFull):
                raise
        return "length"

    def pause(self, request: int, paused: bool) -> None:
        """Pauses (`paused`) or resumes reading a generation."""
        self._loop.call_soon_threadsafe(self._pause, request, paused)

    def cancel(self, request: int, at_once: bool) -> None:
        """Ends a request; not `at_once` where it is about to end by itself."""
        self._loop.call_soon_threadsafe(self._cancel, request, at_once)

    def _begin(self, request: int, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks[request] = self._loop.create_task(run())
        task.add_done_callback(lambda _: self._ended(request, task))

    def _ended(self, request: int, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:  # ours, or a log handler's
            self._emit(request, ErrorEvent(_known(error)))
        del self._tasks[request]
        self._gates.pop(request, None)
        self._cancelled.discard(request)

    def _pause(self, request: int, paused: bool) -> None:
        if request not in self._tasks:
            return
        if paused:
            self._gates[request] = asyncio.Event()
        elif (gate := self._gates.pop(request, None)) is not None:
            gate.set()

    def _cancel(self, request: int, at_once: bool) -> None:
        task = self._tasks.get(request)
        if task is None:
            return
        self._cancelled.add(request)
        self._pause(request, paused=False)
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
        can_resume: Callable[[], bool] = lambda: True,
    ) -> None:
        """Runs a request with retries, and reports its error after the last.

        `progress` counts what was received; `can_resume`, called before each further attempt, returns False where there
        can be none.
        """
        failures, reached = 0, progress()
        broken: set[Replica] = set()  # refused or failed for good; others may not
        while True:
            try:
                async with self._replicas.acquire(root, broken) as replica:
                    await self._once(replica, once, broken)
                return
            except RetryableError as busy:
                failures = 0 if progress() > reached else failures
                failures += replica not in broken
                reached = progress()
                if failures > self._retries or request in self._cancelled or not can_resume():
                    return self._emit(request, ErrorEvent(busy.error))
                log.warning("a server is asked again", host=replica.connection.host, error=str(busy), attempt=failures)
                self._emit(request, RetryEvent())
                if replica not in broken:
                    await asyncio.sleep(_pause(failures, busy.seconds, len(self._replicas.all)))
            except asyncio.CancelledError:
                raise
            except Exception as error:
                return self._emit(request, ErrorEvent(_known(error)))

    async def _once(self, replica: Replica, once: Callable[[Replica], Awaitable[None]], broken: set[Replica]) -> None:
        """Runs one attempt. Raises RetryableError where another attempt, there or elsewhere, may succeed."""
        try:
            await once(replica)
            replica.answered()
        except RetryableError as busy:
            replica.connection.without_key(busy)
            replica.failed(str(busy), busy.seconds)
            raise
        except (RemoteError, StepFailed, ContextFull, BranchNotFound) as error:  # another one may be well, or have it
            replica.connection.without_key(error)
            if not isinstance(error, ContextFull | BranchNotFound):
                replica.failed(str(error), None)
            broken.add(replica)
            if len(broken) < len(self._replicas.all):
                raise RetryableError(error) from None
            raise

    def _emit(self, request: int, event: ServerEvent) -> None:
        self.on_event(request, event)
        if not self._is_woken:
            self._is_woken = True
            self._wake()


async def _called(make: Callable[[], Replicas]) -> Replicas:
    return make()


def _pause(failures: int, seconds: float | None, replicas: int) -> float:
    """Seconds until the next attempt; 0 for the first retry where there is another server."""
    if failures == 1 and replicas > 1:
        return 0.0
    longest = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
    return max(min(seconds or 0.0, _LONGEST_PAUSE_S), random.uniform(longest / 2, longest))


def _known(error: BaseException) -> Exception:
    if isinstance(error, AgentKVError):
        return error
    return RemoteError(f"a request came to nothing: {type(error).__name__}: {error}")
