"""A branch, for code that does not await."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._aio.loop_thread import OnLoop
from .._context.branch import Branch
from .._types.errors import ContextClosed
from .._types.mark import Mark
from .._types.message import Message
from .blocking import Verb, on_loop
from .stream import SyncStream

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import TypeForm

    from .._context.branch import How
    from .._types.checks import Prompt
    from .._types.results import Generation
    from .._types.run import Run
    from ..agents.agent import Agent
    from ..agents.options import How as TurnHow
    from ..output import Constraint
    from ..output.grammar import GrammarSource

Out = TypeVar("Out")


class SyncBranch:
    """A branch whose verbs block until they are done; otherwise as `Branch`.

    Attributes:
        awaited: the branch itself, for code on its event loop.
    """

    def __init__(self, branch: Branch, loop: OnLoop) -> None:
        """Private: use `SyncContext.branch`."""
        self.awaited = branch
        self._loop = loop

    extend = Verb(Branch.extend)
    rollback = Verb(Branch.rollback)
    select = Verb(Branch.select)
    logits = Verb(Branch.logits)
    save = Verb(Branch.save)
    offload = Verb(Branch.offload)
    forget = Verb(Branch.forget)
    draw_as = Verb(Branch.draw_as)
    publish = Verb(Branch.publish)

    @overload
    def generate(
        self, *, output: TypeForm[Out] = ..., output_retries: int = ..., **how: Unpack[How]
    ) -> Generation[Out]: ...
    @overload
    def generate(
        self, *, output: GrammarSource[Out] | Constraint, output_retries: int = ..., **how: Unpack[How]
    ) -> Generation[Out]: ...

    def generate(self, **how: Any) -> Generation[Any]:
        """As `Branch.generate`. A Ctrl-C ends it; what was made stays."""
        return self._loop.wait(self.awaited.generate(**how))

    def stream(self, **how: Any) -> SyncStream[Any]:
        """As `Branch.stream`: `with branch.stream() as tokens: for token in tokens: ...`."""
        return SyncStream(on_loop(self._loop, lambda: self.awaited.stream(**how)), self._loop)

    @overload
    def fork(self) -> SyncBranch: ...
    @overload
    def fork(self, n: int) -> list[SyncBranch]: ...

    def fork(self, n: int | None = None) -> SyncBranch | list[SyncBranch]:
        """As `Branch.fork`."""
        if n is None:
            return SyncBranch(self._loop.wait(self.awaited.fork()), self._loop)
        return [SyncBranch(fork, self._loop) for fork in self._loop.wait(self.awaited.fork(n))]

    def adopt(self, other: SyncBranch) -> None:
        """As `Branch.adopt`."""
        self._loop.wait(self.awaited.adopt(other.awaited))

    def run(
        self, agent: Agent[Any, Out], prompt: Prompt | None = None, *, deps: Any = None, **how: Unpack[TurnHow]
    ) -> Run[Out]:
        """A turn of an agent: as `agent.run(branch, ...)`."""
        return self._loop.wait(agent.run(self.awaited, prompt, deps=deps, **how))

    def mark(self, name: str | None = None) -> Mark:
        """As `Branch.mark`."""
        return on_loop(self._loop, lambda: self.awaited.mark(name))

    def close(self) -> None:
        """Frees the branch, and waits until its cells are free: not on a thread of the Context, where garbage may
        be collected. Does nothing once its Context is closed."""
        if self._loop.is_current() or self._loop.is_waiting():
            self.awaited.close()
            return

        async def closed() -> None:
            await self.awaited.close()

        with suppress(ContextClosed):
            self._loop.wait(closed())

    @property
    def tokens(self) -> list[int]:
        """Its history."""
        return self.awaited.tokens

    @property
    def text(self) -> str:
        """Its history as text."""
        return self.awaited.text

    @property
    def messages(self) -> list[Message]:
        """Its history as messages, where it was made of some."""
        return self.awaited.messages

    @property
    def marks(self) -> dict[str, Mark]:
        """Those with a name."""
        return self.awaited.marks

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self.awaited.closed

    def __len__(self) -> int:
        return len(self.awaited)

    def __repr__(self) -> str:
        return repr(self.awaited)

    def __enter__(self) -> SyncBranch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
