"""Streams the tokens of one generation."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, get_args

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from .._chat.tokenizer import text_decoder
from .._engine.jobs import Resume, StreamJob
from .._types.checks import checked_count, checked_word
from .._types.errors import AgentKVError, BranchBusy
from .._types.results import Generation, Out_co, Token
from .extend import open_turn
from .overflow import OverflowHandler

if TYPE_CHECKING:
    from .._engine.interface import Emitted, FinishedJob, StepEngine
    from .branch import Branch
    from .generate import GenerationRequest

DEFAULT_BUFFER = 64
Keep: TypeAlias = Literal["read", "made"]


class TokenStream(Generic[Out_co]):
    """An async context manager and iterator of `Token`, made by `Branch.stream`.

    The generation runs at most `buffer` tokens ahead of the reader, then its branch (and no other) pauses.

    Leaving the block stops it. The branch then has exactly the tokens that the iterator handed out, however far ahead
    the generation was; with `keep="made"` it has all that were generated. `generation` has the same tokens, with finish
    reason "cancelled" if they are not all. If another task has changed the branch after the generation ended by itself,
    all tokens stay.
    """

    def __init__(
        self,
        branch: Branch,
        request: GenerationRequest,
        buffer: int,
        keep: Keep,
        urgent: Container[int] | None = None,
    ) -> None:
        """Private: use `Branch.stream`. `urgent`: tokens that wake the reader, None for every token."""
        self._branch = branch  # a reference keeps it open
        self._handle = branch._handle
        self._loop = self._handle.loop
        self._request = request
        self._urgent = urgent
        self._begun: StreamJob[Generation[Any]] | None = None  # it refers to this until it is done: made on entry
        self._room = OverflowHandler(branch, 1)
        self._taken_per_notice = max(buffer // 2, 1)
        self._taken = 0  # tokens since the last notice
        self._keep = checked_word(keep, "keep", get_args(Keep))
        self._entered = False
        self._running = ExitStack()
        self._ends = False  # `end` was called
        self._left = False  # nothing is handed out any more
        self._gone = False  # whether the branch was closed when the block ended
        self._read = 0  # number of tokens read
        self._finished: FinishedJob | None = None
        self._tokens: deque[Token] = deque()
        self._count = 0
        self._shown = 0  # characters in the texts of the tokens so far
        self._decoder = text_decoder()
        self._wakeup: anyio.Event | None = None

    async def __aenter__(self) -> TokenStream[Out_co]:
        if self._entered:
            raise AgentKVError("this stream was entered before; call `branch.stream` again for another generation")
        self._handle.check_free()
        self._entered = True
        await checkpoint_if_cancelled()
        await self._request.prepare()
        await open_turn(self._branch)
        await self._handle.ready()
        self._request = self._request.after(self._handle.state)
        self._decoder = text_decoder(self._request.begun)
        self._begun = job = StreamJob(self._start, self._end, self._feed, self._wake, self._urgent)
        self._running.enter_context(self._handle.state.running())
        self._loop.submit(job)
        if self._ends:
            self._loop.revoke(job)
        try:
            await job.started.wait()
            if job.failed and job.id is None:  # one that began hands out its tokens, however soon it failed
                job.result()
        except BaseException as error:
            await self._leave(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        """Ends the stream; with `keep="read"` only the tokens read stay."""
        if self._keep == "read":
            self._left = True
            self._job.keep_tokens = self._read
            self._gone = self._branch.closed
            self._tokens.clear()
        self._running.close()
        await self._loop.cancel(self._job, error)
        if self._job.settled.is_set():  # not where a coroutine is torn down
            self._job.forget_reader()

    def __aiter__(self) -> TokenStream[Out_co]:
        return self

    async def __anext__(self) -> Token:
        """The next token; raises the error that ended the generation."""
        if not await self._there():
            raise StopAsyncIteration
        token = self._tokens.popleft()
        self._take(token)
        return token

    async def batch(self, most: int | None = None) -> list[Token]:
        """All available tokens, or at most `most`; waits for at least one, and returns none after the end.

        Raises as the iterator, and InvalidInput for a `most` below 1.
        """
        if most is not None:
            checked_count(most, "most", 1)
        await self._there()
        tokens = [self._tokens.popleft() for _ in range(min(len(self._tokens), most or len(self._tokens)))]
        self._take(*tokens)
        return tokens

    def unread(self, count: int) -> None:
        """Counts the last `count` tokens handed out as not read: with `keep="read"` they are not kept."""
        self._read -= count

    def end(self) -> None:
        """Ends the generation where it is. Tokens made until then can still be read, and stay. Idempotent."""
        if not self._ends:
            self._ends = True
            if self._begun is not None:
                self._loop.revoke(self._begun)

    @property
    def was_ended(self) -> bool:
        """Whether the generation, which has ended, was ended by `end`."""
        return self._ends and self._finished is not None and self._finished.finish_reason == "cancelled"

    def first(self, count: int) -> Generation[Any]:
        """The generation cut to its first `count` tokens, once it has ended."""
        if self._finished is None:
            return self._job.result()
        return self._request.truncated(self._finished, min(count, len(self._finished.tokens)))

    @property
    def _job(self) -> StreamJob[Generation[Any]]:
        """The job of a stream that has begun. Raises AgentKVError before."""
        if self._begun is None:
            raise AgentKVError("the stream has not begun; use `async with branch.stream(...) as tokens`")
        return self._begun

    async def _there(self) -> bool:
        """Waits for a token. Returns False at the end; raises the error that ended the generation."""
        job = self._job
        self._loop.check_event_loop()
        # A token that came just as the reader was cancelled is not handed out: asyncio alone would prefer the token.
        await (checkpoint() if self._tokens else checkpoint_if_cancelled())
        while not self._tokens:
            if self._left:
                return False
            if job.settled.is_set():
                job.result()
                return False
            if self._handle.state.making_room:
                raise BranchBusy("two tasks read one stream; give each its own branch")
            if job.waits_for_room:
                made = await self._room.make()
                job.waits_for_room = False
                self._loop.submit(Resume(job, made))
                continue  # it may have ended meanwhile
            if self._wakeup is not None:
                raise BranchBusy("two tasks read one stream; give each its own branch")
            self._wakeup = anyio.Event()
            try:
                await self._wakeup.wait()
            finally:
                self._wakeup = None
        return True

    def _take(self, *tokens: Token) -> None:
        """Counts these tokens as read."""
        self._taken += len(tokens)
        if self._taken >= self._taken_per_notice:
            self._loop.ack(self._job, self._taken)
            self._taken = 0
        self._read += sum(token.id >= 0 for token in tokens)

    @property
    def generation(self) -> Generation[Out_co]:
        """The generation, once it has ended: all of it in the block, and afterwards the part that was kept.

        Raises AgentKVError while it runs, and the error that ended it.
        """
        if not self._job.settled.is_set():
            raise AgentKVError("the generation still runs; read the stream to its end or leave its block first")
        finished = self._finished
        shortened = self._left and (self._job.was_truncated or self._gone)
        if shortened and finished is not None and self._read < len(finished.tokens):
            return self._request.truncated(finished, self._read)
        return self._job.result()

    def _start(self, engine: StepEngine) -> int:
        return self._request.start(engine)  # the request as bound on entry

    def _feed(self, items: list[Emitted]) -> None:
        while items and not self._left:
            item = items.pop(0)
            text = self._decoder.decode(item.text)
            likely = self._request.top_logprobs_of(item.top_logprobs) if self._request.options.top_logprobs else ()
            self._tokens.append(Token(item.token, text, item.logprob, self._count, likely))
            self._count += 1
            self._shown += len(text)
        self._wake()

    def _end(self, finished: FinishedJob) -> Generation[Any]:
        self._finished = finished
        generation = self._request.finish(finished)
        if self._left:
            return generation
        held_back = generation.text[self._shown :]
        if held_back and self._tokens:
            last = self._tokens.pop()
            self._tokens.append(replace(last, text=last.text + held_back))
        elif held_back:
            self._tokens.append(Token(-1, held_back, 0.0, self._count))
        return generation

    def _wake(self) -> None:
        if self._wakeup is not None:
            self._wakeup.set()
