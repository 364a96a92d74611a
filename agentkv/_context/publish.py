"""Publishing branches, attaching to them, and the server's side of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._documents.published import PublishedBranch, conversation_saved
from .._engine.commands import Job, check_finished
from .branch import Branch, new_branch
from .extend import BranchChanged
from .handle import handle_of
from .image import image_of

if TYPE_CHECKING:
    from .._engine.interface import FinishedJob, PublishingEngine, StepEngine
    from .core import ContextCore
    from .overflow import Overflow


async def publish(branch: Branch, name: str) -> None:
    """Stores the branch's present state on the server. Raises BranchExists, RemoteError."""
    handle = handle_of(branch)
    state = handle.state
    while True:
        await handle.ready()
        end, saved = state.tip, conversation_saved(state.conversation)
        marks = {mark: place.length for mark, place in state.marks.items()}

        def start(engine: PublishingEngine, end: Any = end, saved: Any = saved, marks: Any = marks) -> int:
            if engine.tip(branch.id) != end:
                raise BranchChanged
            return engine.publish(branch.id, name, saved, marks)

        try:
            return await handle.run(Job(start, check_finished))  # type: ignore[arg-type]
        except BranchChanged:
            pass  # publish the newer state


async def attach(core: ContextCore, name: str, overflow: Overflow | None) -> Branch:
    """Makes a branch equal to the published one. Raises BranchNotFound, RemoteError."""
    created: list[int] = []  # by the thread

    def start(engine: PublishingEngine) -> int:
        branch, _ = engine.create()
        created.append(branch)
        return engine.attach(branch, name)

    def finish(finished: FinishedJob) -> int:
        check_finished(finished)
        published: PublishedBranch = finished.published  # type: ignore[attr-defined]
        core.states[created[0]].restore(published.conversation(), published.marks)
        return len(published.tokens)

    reused = await core.loop.run(Job(start, finish, undo=lambda worker: worker.close(created[0])))  # type: ignore[arg-type]
    return new_branch(core, created[0], None, overflow, reused)


async def snapshot_of(branch: Branch) -> PublishedBranch:
    """The branch's present state, also while it runs something."""
    await handle_of(branch).ready()
    image = await image_of(branch)
    return PublishedBranch(
        tokens=image.tokens.tolist(),
        rng_stream=image.rng_stream,
        forks=image.forks,
        conversations=conversation_saved(image.conversation),
        marks=dict(image.marks),
        output=image.output,
    )


async def branch_of(source: Branch, published: PublishedBranch, overflow: Overflow) -> Branch:
    """Makes a branch from a published one over the cells of `source`, which has its tokens. Raises InvalidInput,
    ValueError."""
    core, conversation = handle_of(source).core, published.conversation()
    output = core.compiler.restored_output(published.output)

    def restore(engine: StepEngine) -> list[int]:
        from agentkv_runtime.engine import StoredBranch

        hold, (image,) = engine.pin([source.id])
        try:
            stored = StoredBranch(
                image.tokens,
                image.rows,
                rng_stream=published.rng_stream,
                forks=published.forks,
                next_logits=image.next_logits,
                adapters=image.adapters,
                **output,
            )
            return engine.restore(hold.id, [stored])
        finally:
            engine.unpin(hold.id)

    def undo(worker: Any, made: list[int]) -> None:
        worker.close(made[0])

    def told(made: list[int]) -> None:
        core.states[made[0]].restore(conversation, published.marks)

    (made,) = await core.loop.call(restore, undo, told)
    return new_branch(core, made, None, overflow)
