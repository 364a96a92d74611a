"""Branches without their cells: their state at one moment, and new branches that are in that state."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .._storage.feed import feed
from .._storage.layout import BranchImage
from .branch import new_branch
from .handle import handle_of
from .prefill import empty_branch, lacking_for

if TYPE_CHECKING:
    from agentkv_runtime.engine import StoredBranch

    from .branch import Branch
    from .core import ContextCore
    from .overflow import Overflow


async def image_of(branch: Branch) -> BranchImage:
    """The branch's present state, also while it runs something, or its cells are offloaded; the logits behind it are
    left out. Raises as `Branch.mark` does."""
    handle = handle_of(branch)
    state, grammars = handle.state, handle.core.compiler
    told: list[Any] = []

    def tell(image: StoredBranch) -> None:
        marks = {name: mark.length for name, mark in state.marks.items() if mark.length <= len(image.tokens)}
        told.extend((state.conversation.cut(len(image.tokens)), marks))

    handle.check_open()
    image = await handle.call(lambda engine: engine.image(branch.id), on_result=tell)
    conversation, marks = told
    return BranchImage(
        tokens=image.tokens,
        rows=image.rows,
        rng_stream=image.rng_stream,
        forks=image.forks,
        next_logits=image.next_logits,
        forgotten=image.forgotten,
        exact_from=image.exact_from,
        adapters=handle.core.adapters.digests(image.adapters),
        conversation=conversation,
        marks=marks,
        output=grammars.saved_output(image),
    )


async def branch_from(
    core: ContextCore,
    image: BranchImage,
    overflow: Overflow | None = None,
    source: Branch | None = None,
    waits: bool = False,
) -> Branch:
    """A branch in the state of an image; tokens that the cache lacks are computed.

    `source`: a branch whose tokens are the image's first ones, as one that was loaded. `waits`: it is for a turn, and
    waits for cells that others are using.

    Raises ContextFull, PositionsExhausted, TooManyBranches.
    """
    if not len(image.tokens):
        ((_, adapter),) = core.adapters.ids(image.adapters) or [(0, 0)]
        branch = await empty_branch(core, overflow, adapter)
        await handle_of(branch).call(lambda engine: engine.set_stream(branch.id, image.rng_stream, image.forks))
        handle_of(branch).state.restore(image.conversation, image.marks)
        return branch
    fed = partial(feed, core.storage, image, None if source is None else source.id)
    plain = source is None and not image.forgotten and not image.adapters
    lacking = lacking_for(image.tokens.tolist()) if plain else None
    offloader = core.offloader
    id, reused = await (fed() if offloader is None else offloader.retry(fed, lacking, waits))
    return new_branch(core, id, None, overflow, reused)
