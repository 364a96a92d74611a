"""New branches whose prompts are being computed."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from .._engine.commands import Job, Worker, check_finished
from .._state.adapters import NO_ADAPTER
from .._types.errors import ContextFull
from .branch import new_branch
from .handle import handle_of
from .overflow import free_cells, most_cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .._chat.rerender import PromptUpdate
    from .._engine.interface import AdapterEngine, FinishedJob, PrefixEngine, StepEngine
    from .._prefixes.cache import PromptPlan
    from .._state.branch_state import BranchStates
    from .branch import Branch
    from .core import ContextCore
    from .offloader import Lacking
    from .overflow import Overflow
    from .underway import Underway


class Source(NamedTuple):
    """An idle branch with a common prefix: its first `kept` tokens."""

    branch: int
    kept: int


def created(engine: StepEngine, tokens: Iterable[int] | None, adapter: int) -> tuple[int, int]:
    """Makes a branch, as `StepEngine.create`, with the adapter of this id; 0 for none."""
    return cast("AdapterEngine", engine).create(tokens, adapter) if adapter else engine.create(tokens)


class PromptNeeds:
    """What attempts at one prompt have in common: random numbers, which do not depend on how often others took its
    cells, and the cells that it needs.

    Attributes:
        adapter: the engine's id of its adapter.
    """

    def __init__(self, most: int | None, adapter: int = NO_ADAPTER, underway: Underway | None = None) -> None:
        """`most`: cells that a branch takes at most; None for any number. `adapter`: the engine's id of its adapter.
        `underway`: prompts whose cells this one leaves to them, and waits; None where it does not wait."""
        self._most = most
        self.adapter = adapter
        self._underway = underway
        self._stream: int | None = None
        self._cells = 0  # by the last attempt

    def take_stream(self, engine: StepEngine) -> int:
        """The stream of random numbers, by the order of first attempts."""
        if self._stream is None:
            self._stream = cast("PrefixEngine", engine).take_stream()
        return self._stream

    def create(self, engine: StepEngine, tokens: Sequence[int], plan: PromptPlan | None) -> tuple[int, int]:
        """Makes the branch; returns its id and the number of tokens that it has already."""
        free = free_cells(engine)
        if plan is not None:
            branch, reused = plan.create(engine)
        elif self._stream is None:
            branch, reused = created(engine, tokens, self.adapter)
            self._stream = engine.rng_stream(branch)
        else:
            prompt = tokens, None, 0, self.take_stream(engine)
            if self.adapter:
                branch, reused = cast("AdapterEngine", engine).create_prompt(*prompt, self.adapter)
            else:
                branch, reused = cast("PrefixEngine", engine).create_prompt(*prompt)
        recalled = free - free_cells(engine)  # retained cells, which count as free until then
        self.need(len(tokens) - reused + recalled)
        return branch, reused

    def need(self, cells: int) -> None:
        """Notes how many cells are needed."""
        self._cells = cells if self._most is None else min(cells, self._most)

    def lacking(self, engine: StepEngine) -> int:
        """Number of cells that lack at this moment, on the engine's thread."""
        owed = 0 if self._underway is None else self._underway.cells(engine)
        return self._cells + owed - free_cells(engine)

    def check(self, engine: StepEngine, length: int) -> None:
        """Raises ContextFull where prompts that are being computed need the cells: half a prompt is no use, and they
        would not end either."""
        if self._underway is None or not self._underway.cells(engine):
            return
        if (lacks := self.lacking(engine)) > 0:
            raise ContextFull(f"a prompt of {length} tokens lacks {lacks} cells beside those that are being computed")

    def begun(self, branch: int, length: int) -> None:
        """Notes that a branch is being computed to this length."""
        if self._underway is not None:
            self._underway.lengths[branch] = length


class PromptJob(Job[None]):
    """Makes a branch with all tokens of an update, and computes those that the cache lacks.

    With a `source` that branch is extended, unless the cache retains a longer prefix, as from an interrupted prompt of
    the same tokens. Cells of a loaded branch are shared by its forks only.
    With a `plan` of the prefix cache it begins with what was read for it.

    Attributes:
        branch: id of the branch, once the engine has made it.
        reused: number of its tokens that were in the cache then; a source's last token counts, too.
    """

    __slots__ = ("_adapter", "_conversation", "_histories", "_needs", "_plan", "_source", "_tokens", "branch", "reused")

    def __init__(
        self,
        states: BranchStates,
        update: PromptUpdate,
        source: Source | None = None,
        plan: PromptPlan | None = None,
        needs: PromptNeeds | None = None,
        adapter: int = NO_ADAPTER,
    ) -> None:
        super().__init__(self._create, self._end, self._undo_made)
        self._histories = states
        self._tokens = update.added
        self._conversation = update.conversation
        self._source = source
        self._plan = plan
        self._needs = needs
        self._adapter = adapter
        self.branch = -1
        self.reused = 0

    def _create(self, engine: StepEngine) -> int:
        branch, reused = self._begin(engine)
        try:
            if self._source is None or reused >= self._source.kept:
                return self._extend(engine, branch, reused, reused)
        except Exception:
            engine.close(branch)
            raise
        engine.close(branch)
        branch, kept = self._source
        engine.rollback(branch, kept, keep_forgotten=True)
        refill = engine.n_to_refill(branch)
        if self._needs is not None:
            self._needs.need(len(self._tokens) - kept + refill)
        return self._extend(engine, branch, kept, kept if refill <= 1 else engine.n_cached(branch))

    def _extend(self, engine: StepEngine, branch: int, kept: int, reused: int) -> int:
        if self._needs is not None:
            self._needs.check(engine, len(self._tokens))
        job = engine.extend(branch, self._tokens[kept:])
        if self._needs is not None:
            self._needs.begun(branch, len(self._tokens))
        self.branch, self.reused = branch, reused
        return job

    def _begin(self, engine: StepEngine) -> tuple[int, int]:
        if self._needs is not None:
            return self._needs.create(engine, self._tokens, self._plan)
        return self._plan.create(engine) if self._plan else created(engine, self._tokens, self._adapter)

    def end(self, worker: Worker, finished: FinishedJob) -> None:
        if self._plan is not None and finished.error is None and finished.finish_reason != "cancelled":
            self._plan.computed(worker.engine, self.branch)
        super().end(worker, finished)

    def _undo_made(self, worker: Worker) -> None:
        if self._source is None or self.branch != self._source.branch:
            worker.close(self.branch)

    def _end(self, finished: FinishedJob) -> None:
        check_finished(finished)
        if self._conversation is not None:
            self._histories[self.branch].set_conversation(self._conversation)
        if self._plan is not None:
            self._plan.finish(finished.seconds)


class _WatchedJob(PromptJob):
    """A PromptJob that can be awaited before it is done. `taken` is set once the engine has accepted or refused it."""

    __slots__ = ("taken",)

    def __init__(
        self,
        states: BranchStates,
        update: PromptUpdate,
        source: Source | None,
        needs: PromptNeeds | None,
        plan: PromptPlan | None,
    ) -> None:
        super().__init__(states, update, source, plan, needs)
        self.taken = anyio.Event()

    def apply(self, worker: Worker) -> None:
        super().apply(worker)
        worker.report(self.taken.set)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.taken.set()


class PromptPrefill:
    """A prompt that is being computed, as a context manager: entered once the engine has accepted it. An error in
    the block ends the job and closes its branch; the tokens computed are retained for a later prompt with the same
    prefix.

    Reads from the prefix cache first, if there is one, no `source`, and no adapter; with `common` other prompts will
    begin with all of this one. `needs` are of all attempts at this prompt."""

    def __init__(
        self,
        core: ContextCore,
        update: PromptUpdate,
        source: Source | None = None,
        common: bool = False,
        needs: PromptNeeds | None = None,
    ) -> None:
        self._loop = core.loop
        plain = source is None and (needs is None or not needs.adapter)
        self._prefixes = core.prefixes if plain else None
        self._new_job = partial(_WatchedJob, core.states, update, source, needs)
        self._tokens = update.added
        self._common = common
        self._needs = needs
        self._plan: PromptPlan | None = None
        self._job: _WatchedJob

    @property
    def branch(self) -> int:
        """Id of the branch."""
        return self._job.branch

    @property
    def reused(self) -> int:
        """Number of its tokens that were in the cache already."""
        return self._job.reused

    @property
    def settled(self) -> anyio.Event:
        """Event set once all tokens are computed, or the job failed."""
        return self._job.settled

    async def __aenter__(self) -> PromptPrefill:
        await checkpoint_if_cancelled()
        if self._prefixes is None:
            await self._begin(None)
            return self
        async with self._prefixes.planned(self._tokens, self._common, self._needs) as plan:
            try:
                await self._begin(plan)
            except BaseException:
                plan.leave()
                raise
            plan.created()
        self._plan = plan
        return self

    async def _begin(self, plan: PromptPlan | None) -> None:
        self._job = self._new_job(plan)
        self._loop.submit(self._job)
        try:
            await self._job.taken.wait()
        except BaseException as error:
            await self._loop.cancel(self._job, error)
            raise
        if self._job.failed:
            self._job.take()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                await self._loop.cancel(self._job, error)
        finally:
            if self._plan is not None:
                self._plan.leave()

    async def computed(self) -> None:
        """Waits until all tokens are computed; raises the error of the job."""
        await self._job.settled.wait()
        self._job.take()

    async def length(self) -> int:
        """Number of tokens computed so far; 0 if the job failed."""
        branch = self._job.branch
        return await self._loop.call(lambda engine: engine.length(branch) if branch in engine.live() else 0)


async def empty_branch(core: ContextCore, overflow: Overflow | None, adapter: int = NO_ADAPTER) -> Branch:
    """Makes a root branch without tokens."""
    id, _ = await core.loop.call(
        lambda engine: created(engine, None, adapter), lambda worker, made: worker.close(made[0])
    )
    return new_branch(core, id, None, overflow)


async def prompted_branch(
    core: ContextCore,
    update: PromptUpdate,
    overflow: Overflow | None,
    common: bool = False,
    adapter: int = NO_ADAPTER,
) -> Branch:
    """Makes a root branch with a rendered prompt; with `common` other prompts will begin with all of it. Prompts under
    an adapter are not in the prefix cache."""
    if not update.added and update.conversation is not None:  # the chat template writes it with the first question
        branch = await empty_branch(core, overflow, adapter)
        handle_of(branch).state.set_conversation(update.conversation)
        return branch
    if core.offloader is None:
        return await _computed(core, update, overflow, common, None, adapter)
    needs = PromptNeeds(most_cells(core.model.info), adapter)
    return await core.offloader.retry(partial(_computed, core, update, overflow, common, needs, adapter), needs.lacking)


def lacking_for(tokens: Sequence[int]) -> Lacking:
    """Number of cells that lack for a new branch with these tokens."""

    def lacking(engine: StepEngine) -> int:
        return len(tokens) - cast("PrefixEngine", engine).n_reusable(tokens) - free_cells(engine)

    return lacking


async def _computed(
    core: ContextCore,
    update: PromptUpdate,
    overflow: Overflow | None,
    common: bool,
    needs: PromptNeeds | None,
    adapter: int,
) -> Branch:
    if core.prefixes is None or adapter:
        job = PromptJob(core.states, update, needs=needs, adapter=adapter)
        await core.loop.run(job)
        return new_branch(core, job.branch, None, overflow, job.reused)
    async with PromptPrefill(core, update, common=common, needs=needs) as prompt:
        await prompt.computed()
    return new_branch(core, prompt.branch, None, overflow, prompt.reused)
