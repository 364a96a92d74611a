"""A branch, for code that does not await."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .._aio.loop_thread import LoopPortal
from .._context.branch import Branch
from .._types.adapter import Adapter
from .._types.errors import ContextClosed
from .._types.mark import Mark
from .._types.message import Message
from .blocking import BlockingVerb, on_loop
from .running import SyncTurn
from .stream import SyncStream
from .workspace import SyncWorkspaceView

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import TypeForm

    from .._context.branch import GenerateKwargs
    from .._types.checks import Prompt
    from .._types.results import Generation
    from .._types.run import Run
    from ..agents.agent import Agent
    from ..agents.options import RunKwargs as TurnHow
    from ..output import Constraint
    from ..output.grammar import GrammarSource

Out = TypeVar("Out")


class SyncBranch:
    """A branch whose verbs block until they are done; otherwise like `Branch`.

    Attributes:
        awaited: the branch itself, for code on its event loop.
    """

    def __init__(self, branch: Branch, loop: LoopPortal) -> None:
        """Private: use `SyncContext.branch`."""
        self.awaited = branch
        self._loop = loop

    extend = BlockingVerb(Branch.extend)
    rollback = BlockingVerb(Branch.rollback)
    select = BlockingVerb(Branch.select)
    logits = BlockingVerb(Branch.logits)
    save = BlockingVerb(Branch.save)
    offload = BlockingVerb(Branch.offload)
    forget = BlockingVerb(Branch.forget)
    draw_as = BlockingVerb(Branch.draw_as)
    publish = BlockingVerb(Branch.publish)

    @overload
    def generate(
        self, *, output: TypeForm[Out] = ..., output_retries: int = ..., **how: Unpack[GenerateKwargs]
    ) -> Generation[Out]: ...
    @overload
    def generate(
        self, *, output: GrammarSource[Out] | Constraint, output_retries: int = ..., **how: Unpack[GenerateKwargs]
    ) -> Generation[Out]: ...

    def generate(self, **how: Any) -> Generation[Any]:
        """Generates as `Branch.generate` does. A Ctrl-C ends it; tokens made until then stay."""
        return self._loop.wait(self.awaited.generate(**how))

    def stream(self, **how: Any) -> SyncStream[Any]:
        """Streams as `Branch.stream` does: `with branch.stream() as tokens: for token in tokens: ...`."""
        return SyncStream(on_loop(self._loop, lambda: self.awaited.stream(**how)), self._loop)

    @overload
    def fork(self) -> SyncBranch: ...
    @overload
    def fork(self, n: int) -> list[SyncBranch]: ...

    def fork(self, n: int | None = None) -> SyncBranch | list[SyncBranch]:
        """Makes one fork, or a list of n, as `Branch.fork` does."""
        if n is None:
            return SyncBranch(self._loop.wait(self.awaited.fork()), self._loop)
        return [SyncBranch(fork, self._loop) for fork in self._loop.wait(self.awaited.fork(n))]

    def adopt(self, other: SyncBranch) -> None:
        """Takes over the history of another branch, as `Branch.adopt` does."""
        self._loop.wait(self.awaited.adopt(other.awaited))

    def run(
        self, agent: Agent[Any, Out], prompt: Prompt | None = None, *, deps: Any = None, **how: Unpack[TurnHow]
    ) -> Run[Out]:
        """Runs a turn of an agent, as `agent.run(branch, ...)` does."""
        return self._loop.wait(agent.run(self.awaited, prompt, deps=deps, **how))

    def start(
        self, agent: Agent[Any, Out], prompt: Prompt | None = None, *, deps: Any = None, **how: Unpack[TurnHow]
    ) -> SyncTurn[Out]:
        """Starts a turn of an agent, as `agent.start(branch, ...)` does."""
        turn = on_loop(self._loop, lambda: agent.start(self.awaited, prompt, deps=deps, **how))
        return SyncTurn(turn, self, self._loop)

    def mark(self, name: str | None = None) -> Mark:
        """Marks the current end of the branch, as `Branch.mark` does."""
        return on_loop(self._loop, lambda: self.awaited.mark(name))

    def close(self) -> None:
        """Closes the branch, and waits until its cells are free. Does nothing once its Context is closed.

        On a thread of the Context, where garbage may be collected, it does not wait.
        """
        if self._loop.is_current() or self._loop.blocks_on_caller():
            self.awaited.close()
            return

        async def closed() -> None:
            await self.awaited.close()

        with suppress(ContextClosed):
            self._loop.wait(closed())

    @property
    def tokens(self) -> list[int]:
        """Token ids of the history."""
        return self.awaited.tokens

    @property
    def text(self) -> str:
        """The history as text."""
        return self.awaited.text

    @property
    def messages(self) -> list[Message]:
        """The history as messages, where it was made of messages."""
        return self.awaited.messages

    @property
    def marks(self) -> dict[str, Mark]:
        """Named marks, by name."""
        return self.awaited.marks

    @property
    def adapter(self) -> Adapter | None:
        """The LoRA adapter of the next token, as `Branch.adapter`."""
        return self.awaited.adapter

    @adapter.setter
    def adapter(self, adapter: Adapter | None) -> None:
        on_loop(self._loop, lambda: setattr(self.awaited, "adapter", adapter))

    @property
    def workspace(self) -> SyncWorkspaceView | None:
        """Its files, as `Branch.workspace`."""
        view = self.awaited.workspace
        return None if view is None else SyncWorkspaceView(view, self._loop)

    @property
    def closed(self) -> bool:
        """Whether the branch is closed."""
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
