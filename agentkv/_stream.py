"""Tokens of one generation as they come."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from ._commands import StreamJob
from ._errors import AgentKVError, BranchBusy
from ._generation import Generation, Token

if TYPE_CHECKING:
    from ._branch import Branch
    from ._engine import Emitted, Finished
    from ._request import GenerationRequest

DEFAULT_BUFFER = 64


class TokenStream:
    """An async context manager and iterator of `Token`, made by `Branch.stream`.

    The generation runs at most `buffer` tokens ahead of the reader, then its branch (and no other) pauses.
    Leaving the block stops it, with finish reason "cancelled"; what it made stays in the branch. Afterwards, and once
    the iterator has ended, `generation` holds the whole of it.
    """

    def __init__(
        self,
        branch: Branch,
        request: GenerationRequest,
        buffer: int,
    ) -> None:
        self._branch = branch  # kept: one that nobody refers to is closed
        self._loop = branch._loop
        self._request = request
        self._job: StreamJob[Generation] = StreamJob(request.start, self._end, self._feed, self._wake)
        self._taken_per_notice = max(buffer // 2, 1)
        self._taken = 0  # tokens since the last notice
        self._entered = False
        self._tokens: deque[Token] = deque()
        self._count = 0
        self._shown = 0  # characters in the texts of the tokens so far
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._wakeup: anyio.Event | None = None

    async def __aenter__(self) -> TokenStream:
        if self._entered:
            raise AgentKVError("this stream was entered before; call `branch.stream` again for another generation")
        self._branch._check_free()
        await checkpoint_if_cancelled()
        self._branch._check_free()
        self._entered = True
        await self._request.prepare()
        self._loop.submit(self._job)
        try:
            await self._job.started.wait()
        except GeneratorExit:
            self._loop.drop(self._job)
            raise
        except BaseException:
            await self._loop.cancel(self._job)
            raise
        if self._job.failed:
            self._job.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
            self._loop.drop(self._job)
        else:
            await self._loop.cancel(self._job)

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Token:
        """The next token; raises what ended the generation, if it was an error."""
        if not self._entered:
            raise AgentKVError("the stream has not begun; use `async with branch.stream(...) as tokens`")
        self._loop.check_here()
        if self._tokens:
            await checkpoint()
        while not self._tokens:
            if self._job.settled.is_set():
                self._job.result()
                raise StopAsyncIteration
            if self._wakeup is not None:
                raise BranchBusy("two tasks read one stream; give each its own branch")
            self._wakeup = anyio.Event()
            try:
                await self._wakeup.wait()
            finally:
                self._wakeup = None
        self._taken += 1
        if self._taken == self._taken_per_notice:
            self._loop.taken(self._job, self._taken)
            self._taken = 0
        return self._tokens.popleft()

    @property
    def generation(self) -> Generation:
        """The whole generation, once the stream has ended; AgentKVError before, or the error that ended it."""
        if not self._job.settled.is_set():
            raise AgentKVError("the generation still runs; read the stream to its end or leave its block first")
        return self._job.result()

    def _feed(self, items: list[Emitted]) -> None:
        while items:
            item = items.pop(0)
            text = self._decoder.decode(item.text)
            likely = self._request.likely(item.top_logprobs)
            self._tokens.append(Token(item.token, text, item.logprob, self._count, likely))
            self._count += 1
            self._shown += len(text)
        self._wake()

    def _end(self, finished: Finished) -> Generation:
        generation = self._request.finish(finished)
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
