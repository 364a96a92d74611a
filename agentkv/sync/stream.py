"""A generation, token by token, for code that does not await."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from .._aio.loop_thread import LoopPortal
from .._context.stream import TokenStream
from .._types.results import Generation, Token

Out_co = TypeVar("Out_co", covariant=True)


class SyncStream(Generic[Out_co]):
    """A context manager and iterator of `Token`, made by `SyncBranch.stream`; otherwise like `TokenStream`.

    While nobody reads, a generation continues until its buffer is full.
    """

    def __init__(self, stream: TokenStream[Out_co], loop: LoopPortal) -> None:
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
        """Returns the next token; raises the error that ended the generation, if there is one."""
        batch = self._loop.wait(self.awaited.batch(1))
        if not batch:
            raise StopIteration
        return batch[0]

    @property
    def generation(self) -> Generation[Out_co]:
        """The generation with the tokens that were kept, once the block is left."""
        return self.awaited.generation
