"""Tokens of a generation on a server, as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

import anyio

from .._errors import AgentKVError, StepFailed
from .._generation import Generation, Out_co, Token, Usage
from ..output._asked import Asked
from ._told import Begun, Event, Generated, ToldGeneration
from ._values import Told, generation_of
from ._wire import odd

if TYPE_CHECKING:
    from ._branch import RemoteBranch


class RemoteStream(Generic[Out_co]):
    """As `kv.TokenStream`: an async context manager and iterator of `kv.Token`. Leaving the block stops the generation,
    and the branch then holds exactly the tokens that were read."""

    def __init__(self, branch: RemoteBranch, body: Told, asked: Asked[Any]) -> None:
        """Private: use `RemoteBranch.stream`."""
        self._branch = branch
        self._body = body
        self._asked = asked
        self._events: AsyncGenerator[Event] | None = None
        self._began = 0  # tokens of the branch before it
        self._read: list[Token] = []
        self._over = False
        self._generation: Generation[Any] | None = None
        self._failure: AgentKVError | None = None

    async def __aenter__(self) -> RemoteStream[Out_co]:
        if self._events is not None:
            raise AgentKVError("this stream was entered before; call `branch.stream` again for another generation")
        self._branch._begin()
        self._events = self._branch._wire.events(f"{self._branch._path}/generate", self._body)
        try:
            begun = await anext(self._events)
            if not isinstance(begun, Begun):
                await self._events.aclose()
                raise odd("the stream has no beginning")
        except anyio.get_cancelled_exc_class():
            try:
                await self._branch._stop_soon(len(self._branch))
            finally:  # asyncio's own cancel gets through shields
                self._end()
            raise
        except BaseException:
            self._end()
            raise
        self._began = begun.length
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._events is not None and kind is not GeneratorExit:  # then nothing can be awaited any more
                await self._leave(self._events, fails=kind is not None)
        finally:
            self._end()

    async def _leave(self, events: AsyncGenerator[Event], *, fails: bool) -> None:
        read = [token for token in self._read if token.id >= 0]
        if not fails and len(read) == self._body.get("max_tokens"):
            async for _ in self:  # there is no token left, but how it ended
                pass
        await events.aclose()
        if self._over:
            return
        if not self._branch.closed:
            kept = self._began + len(read)
            await (self._branch._stop_soon(kept) if fails else self._branch._stop(kept))
        self._generation = generation_of(self._cut(read), self._asked)

    def _end(self) -> None:
        """The branch is free for another generation."""
        if not self._over:
            self._over = True
            self._branch._generates = False

    def _cut(self, read: list[Token]) -> ToldGeneration:
        return ToldGeneration(
            text="".join(token.text for token in self._read),
            tokens=[token.id for token in read],
            logprobs=[token.logprob for token in read],
            finish_reason="cancelled",
            usage=Usage(self._began, len(read)),
            seed=(self._body["sampling"] or {}).get("seed"),
            top_logprobs=[token.top_logprobs for token in read] if self._body.get("top_logprobs") else [],
            output=None,
            output_error=None,
        )

    def __aiter__(self) -> RemoteStream[Out_co]:
        return self

    async def __anext__(self) -> Token:
        """The next token; raises what ended the generation, if it was an error."""
        if self._events is None:
            raise AgentKVError("the stream has not begun; use `async with branch.stream(...) as tokens`")
        if self._over:
            raise StopAsyncIteration
        try:
            event = await anext(self._events, None)
        except AgentKVError as error:
            self._end()
            self._failure = error
            if isinstance(error, StepFailed):
                await self._branch._look()
            raise
        if event is None:
            raise AgentKVError("a reader of this stream was cancelled, which ended it; leave its block to go on")
        if isinstance(event, Begun):
            raise odd("the stream begins twice")
        if isinstance(event, Generated):
            self._end()
            self._branch._take(event)
            self._generation = generation_of(event.generation, self._asked)
            raise StopAsyncIteration
        self._read.append(event)
        return event

    @property
    def generation(self) -> Generation[Out_co]:
        """The generation, once it has ended: all of it, or what was read. Raises what it failed with, and AgentKVError
        before it has ended."""
        if self._failure is not None:
            raise self._failure
        if self._generation is None:
            raise AgentKVError("the generation still runs; read the stream to its end or leave its block first")
        return self._generation
