"""Requests with an `Idempotency-Key`: each runs once, to its end; repetitions get the same answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from starlette.responses import Response

from ..openai.chat import ERRORS
from .errors import ApiError
from .responses import CancellableResponse, Emit, EventStream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from .body import Body

MOST_KEYS = 256  # per branch; then the oldest key is forgotten
MOST_BYTES = 1 << 20  # of stored answers per branch; the newest is always kept
_LONGEST_KEY = 255
_EVENT_BYTES = 128  # overhead of an event, beside its text

Work: TypeAlias = Callable[[Emit], Awaitable[None]]
"""Runs a request. Emits the events of a stream, or a single JSON text as the whole answer."""


@dataclass(slots=True)
class Progress:
    """Progress of a request. Its error is stored as its answer once it has `changed` something."""

    changed: bool = False


class RecordedAnswer:
    """Answer of one request as a list of events, complete or still growing."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.ended = False
        self.nbytes: int | None = 0  # None once the answer was dropped
        self.error: Exception | None = None
        self._events: list[tuple[str, str | None]] = []
        self._more = anyio.Event()

    async def run(self, work: Work) -> None:
        """Runs the request and records its events and error. Raises only a cancellation, which is recorded as an
        error."""
        try:
            await work(self._emit)
        except Exception as error:
            self.error = error
        except BaseException:
            what = "the request that this one repeats was given up; read the branch"
            self.error = ApiError("conflict", what, "given_up")
            raise
        finally:
            self.ended = True
            self._wake()

    async def replay(self, emit: Emit) -> None:
        """Emits all events, those to come included, and then raises the request's error."""
        events, position = self._events, 0
        while not (self.ended and position == len(events)):
            if position == len(events):
                await self._more.wait()
                continue
            await emit(*events[position])
            position += 1
        if self.error is not None:
            raise self.error

    def drop(self) -> None:
        """Drops the events to free memory; the key stays known."""
        self._events = []  # running replays keep the old list
        self.nbytes = None

    async def _emit(self, data: str, event: str | None = None) -> None:
        self._events.append((data, event))
        if self.nbytes is not None:
            self.nbytes += _EVENT_BYTES + len(data)
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = anyio.Event()


class StoredAnswers:
    """Recorded answers by key: of one branch, or of the requests that create and close branches."""

    def __init__(self) -> None:
        self._by_key: dict[str, RecordedAnswer] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: str | None) -> bool:
        return key in self._by_key

    def recording(self, key: str, digest: bytes) -> tuple[RecordedAnswer, bool]:
        """Returns the recording of a key, and whether it is new. Raises ApiError for a key of another request, and for
        a dropped answer."""
        known = self._by_key.get(key)
        if known is None:
            recording = self._by_key[key] = RecordedAnswer(digest)
            return recording, True
        if known.digest != digest:
            what = f"Idempotency-Key {key!r} was sent with another request; take a new key for each request"
            raise ApiError("mismatch", what, "idempotency_key_reused", "Idempotency-Key")
        if known.nbytes is None:
            what = f"the request of Idempotency-Key {key!r} was done, and its answer has made room; read the branch"
            raise ApiError("conflict", what, "idempotency_answer_dropped", "Idempotency-Key")
        return known, False

    async def run(self, key: str, recording: RecordedAnswer, work: Work, progress: Progress) -> None:
        """Runs the first request of a key. If it fails without a change, the key is free again."""
        try:
            await recording.run(work)
        finally:
            if recording.error is not None and not progress.changed:
                self._by_key.pop(key, None)
            self._make_room()

    def _make_room(self) -> None:
        ended = [(key, each) for key, each in self._by_key.items() if each.ended]
        for key, _ in ended[: max(len(ended) - MOST_KEYS, 0)]:
            del self._by_key[key]
        total = 0
        for age, (_, each) in enumerate(reversed(ended)):
            total += each.nbytes or 0
            if age and total > MOST_BYTES:
                each.drop()


class Repeatable(Response):
    """Response from a recording. The first request of its key runs to its end even if its client disconnects."""

    def __init__(self, follower: Response, run: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._follower = follower
        self._run = run
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        async with anyio.create_task_group() as group:
            if self._run is not None:
                group.start_soon(self._run)
            await self._follower(scope, receive, send)


def respond(
    answers: StoredAnswers,
    request: Request,
    body: Body | None,
    work: Work,
    progress: Progress | None = None,
    *,
    stream: bool = False,
) -> Response:
    """Makes the response from the request's own work, or from that of the first request with its `Idempotency-Key`.

    Args:
        progress: says whether an error is stored as an answer; None where a failure changes nothing.

    Raises ApiError for an invalid key, and for one that another request had.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return _response(work, stream)
    if not 0 < len(key) <= _LONGEST_KEY or not key.isprintable():
        what = f"Idempotency-Key must have 1 to {_LONGEST_KEY} printable characters, such as a UUID"
        raise ApiError("invalid", what, "invalid_value", "Idempotency-Key")
    recording, first = answers.recording(key, _digest(request, body))

    async def run() -> None:
        await answers.run(key, recording, work, progress or Progress())

    return Repeatable(_response(recording.replay, stream), run if first else None)


def _digest(request: Request, body: Body | None) -> bytes:
    """Digest of a request's method, URL and body."""
    url, said = request.url, "" if body is None else body.model_dump_json()
    return blake2b(f"{request.method} {url.path}?{url.query}\n{said}".encode(), digest_size=16).digest()


def _response(work: Work, stream: bool) -> Response:
    if stream:
        return EventStream(work, ERRORS)

    async def whole() -> Response:
        said: list[str] = []

        async def emit(data: str, event: str | None = None) -> None:
            said.append(data)

        await work(emit)
        return Response("".join(said), media_type="application/json")

    return CancellableResponse(whole, ERRORS)
