"""A new branch while its prompt is computed."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from .._engine.commands import Job, Worker, check_finished
from .branch import new_branch
from .handle import handle_of

if TYPE_CHECKING:
    from .._chat.rerender import Continuation
    from .._engine.interface import Finished, StepEngine
    from .._state.branch_state import Histories
    from .branch import Branch
    from .core import Home
    from .overflow import Overflow


class Source(NamedTuple):
    """An idle branch that begins alike: the first `kept` tokens of both are the same."""

    branch: int
    kept: int


class PromptJob(Job[None]):
    """Makes a branch of all tokens of a continuation, and computes what the cache does not have of them.

    With a `source` that branch is extended, unless more is retained: by a prompt of the same tokens that was ended on
    its way, say. What a branch has that was loaded, its forks alone share.

    Attributes:
        branch: its number, once the engine has taken it on.
        reused: so many of its tokens were in the cache then; the last one that a source made counts, too.
    """

    __slots__ = ("_conversation", "_histories", "_source", "_tokens", "branch", "reused")

    def __init__(self, histories: Histories, made: Continuation, source: Source | None = None) -> None:
        super().__init__(self._create, self._end, self._undo_made)
        self._histories = histories
        self._tokens = made.added
        self._conversation = made.conversation
        self._source = source
        self.branch = -1
        self.reused = 0

    def _create(self, engine: StepEngine) -> int:
        branch, reused = engine.create(self._tokens)
        try:
            if self._source is None or reused >= self._source.kept:
                job = engine.extend(branch, self._tokens[reused:])
                self.branch, self.reused = branch, reused
                return job
        except Exception:
            engine.close(branch)
            raise
        engine.close(branch)
        branch, kept = self._source
        engine.rollback(branch, kept, keep_forgotten=True)
        cached = kept if engine.n_to_refill(branch) <= 1 else engine.n_cached(branch)
        job = engine.extend(branch, self._tokens[kept:])
        self.branch, self.reused = branch, cached
        return job

    def _undo_made(self, worker: Worker) -> None:
        if self._source is None or self.branch != self._source.branch:
            worker.close(self.branch)

    def _end(self, finished: Finished) -> None:
        check_finished(finished)
        if self._conversation is not None:
            self._histories[self.branch].converse(self._conversation)


class _WatchedJob(PromptJob):
    """One that is waited for before it is done, too. `taken` is set once the engine has taken it on, or refused it."""

    __slots__ = ("taken",)

    def __init__(self, histories: Histories, made: Continuation, source: Source | None) -> None:
        super().__init__(histories, made, source)
        self.taken = anyio.Event()

    def apply(self, worker: Worker) -> None:
        super().apply(worker)
        worker.report(self.taken.set)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.taken.set()


class Prefilling:
    """A prompt that is being computed, for the length of a block: entered once the engine has taken it on. What is left
    of it then is ended, and its branch closed; what was computed of it is retained for whoever asks the same again."""

    def __init__(self, core: Home, made: Continuation, source: Source | None) -> None:
        self._loop = core.loop
        self._job = _WatchedJob(core.states, made, source)

    @property
    def branch(self) -> int:
        """The number of the branch."""
        return self._job.branch

    @property
    def reused(self) -> int:
        """How many of its tokens were in the cache already."""
        return self._job.reused

    @property
    def settled(self) -> anyio.Event:
        """Set once all of them are, or that failed."""
        return self._job.settled

    async def __aenter__(self) -> Prefilling:
        await checkpoint_if_cancelled()
        self._loop.submit(self._job)
        try:
            await self._job.taken.wait()
        except BaseException as error:
            await self._leave(error)
            raise
        if self._job.failed:
            self._job.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            await self._leave(error)

    async def _leave(self, error: BaseException) -> None:
        if isinstance(error, GeneratorExit):  # the coroutine is torn down: nothing can be awaited any more
            self._loop.drop(self._job)
        else:
            await self._loop.cancel(self._job)

    async def computed(self) -> None:
        """Returns once all of it is; raises what it failed with."""
        await self._job.settled.wait()
        self._job.result()

    async def length(self) -> int:
        """How many of its tokens are computed by now; 0 where it has failed."""
        branch = self._job.branch
        return await self._loop.call(lambda engine: engine.length(branch) if branch in engine.live() else 0)


async def empty_branch(core: Home, overflow: Overflow | None) -> Branch:
    """A new root branch without tokens."""
    id, _ = await core.loop.call(lambda engine: engine.create(), lambda worker, made: worker.close(made[0]))
    return new_branch(core, id, None, overflow)


async def prompted_branch(core: Home, made: Continuation, overflow: Overflow | None) -> Branch:
    """A new root branch that holds a rendered prompt."""
    if not made.added and made.conversation is not None:  # the chat template writes it with the first question
        branch = await empty_branch(core, overflow)
        handle_of(branch).state.converse(made.conversation)
        return branch
    job = PromptJob(core.states, made)
    await core.loop.run(job)
    return new_branch(core, job.branch, None, overflow, job.reused)
