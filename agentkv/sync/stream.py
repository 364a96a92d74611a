"""A generation, token by token, for code that does not await."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from .._aio.loop_thread import OnLoop
from .._context.stream import TokenStream
from .._types.results import Generation, Token

Out_co = TypeVar("Out_co", covariant=True)


class SyncStream(Generic[Out_co]):
    """A context manager and iterator of `Token`, made by `SyncBranch.stream`; otherwise as `TokenStream`.

    A generation goes on to the end of its buffer while nobody reads.
    """

    def __init__(self, stream: TokenStream[Out_co], loop: OnLoop) -> None:
        """Private: use `SyncBranch.stream`."""
        self.awaited = stream
        self._loop = loop

    def __enter__(self) -> SyncStream[Out_co]:
        self._loop.wait(self.awaited.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.wait(self.awaited.__aexit__(kind, error, traceback))

    def __iter__(self) -> SyncStream[Out_co]:
        return self

    def __next__(self) -> Token:
        """The next token; raises what ended the generation, if it was an error."""
        batch = self._loop.wait(self.awaited.batch(1))
        if not batch:
            raise StopIteration
        return batch[0]

    @property
    def generation(self) -> Generation[Out_co]:
        """What was kept, once the block was left."""
        return self.awaited.generation
