"""Branches in the state of an image, by computing their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._engine.commands import Job, check_finished
from .layout import BranchImage

if TYPE_CHECKING:
    from .._engine.interface import StepEngine
    from .save import StorageDeps


async def feed(storage: StorageDeps, image: BranchImage, source: int | None = None) -> tuple[int, int]:
    """Makes a branch of an image by feeding its tokens, except for those that the cache has.

    `source`: a branch whose tokens are the image's first ones; its cells are shared. Returns the id of the branch, and
    the number of tokens that were cached.
    """
    adapters = storage.adapters.ids(image.adapters)
    created: list[int] = []  # by the thread
    shared: list[int] = []

    def create(engine: StepEngine) -> int:
        if image.forgotten or image.adapters:
            branch, reused = _without_rows(engine, image, adapters)
        elif source is not None:
            branch, reused = engine.fork(source, 1)[0], engine.length(source)
        else:
            branch, reused = engine.create(image.tokens)
        try:
            engine.set_stream(branch, image.rng_stream, image.forks)
            is_whole = engine.length(branch) == len(image.tokens)
            job = engine.logits(branch) if is_whole else engine.extend(branch, image.tokens[reused:])
        except Exception:
            engine.close(branch)
            raise
        created.append(branch)
        shared.append(reused)
        return job

    def finish(finished: Any) -> None:
        check_finished(finished)
        storage.states[created[0]].restore(image.conversation, image.marks)

    await storage.loop.run(Job(create, finish, undo=lambda worker: worker.close(created[0])))
    return created[0], shared[0]


def _without_rows(engine: StepEngine, image: BranchImage, adapters: list[tuple[int, int]]) -> tuple[int, int]:
    """Restores a branch without cells: the next job feeds its tokens and repeats its forgetting. Returns (id, 0)."""
    from agentkv_runtime.engine import StoredBranch

    none = np.zeros((0, 3), np.int32)
    stored = StoredBranch(
        image.tokens,
        none,
        rng_stream=0,
        forks=0,
        next_logits=np.zeros(0, np.float32),
        forgotten=image.forgotten,
        adapters=adapters,
    )
    return engine.restore(None, [stored])[0], 0
