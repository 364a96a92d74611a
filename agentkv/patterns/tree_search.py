"""Tree search: thoughts grow on forks, are judged, and only the best grow on."""

from __future__ import annotations

from collections.abc import Callable

from .._context.branch import Branch
from .._types.checks import truth_of
from ._shared import Attempt, Grove, Score, T, Winner, attempt_each, check, checked, scored


async def tree_search(
    trunk: Branch,
    expand: Attempt[T],
    *,
    score: Score[T],
    width: int = 2,
    children: int = 3,
    depth: int = 3,
    done: Callable[[T], bool] = lambda _: False,
    timeout: float | None = None,
) -> Winner[T]:
    """Grows a tree of thoughts level by level, and returns the best one; the trunk stays as it is.

    Yao et al. 2023, "Tree of Thoughts", as a beam over levels: every selected branch gets `children` forks, each of
    which is expanded and judged; the best `width` of a level are selected, and the rest are closed.

    Args:
        trunk: the root.
        expand: called with a fork; adds one thought to it and returns the result.
        score: judges a thought, a plain or an async function; the highest is best, on a tie the earlier fork.
        width: number of branches of a level that are selected.
        children: number of forks of each selected branch.
        depth: most levels.
        done: returns whether a thought is an answer; the search ends with the first level whose best one is.
        timeout: seconds after which a fork that is not expanded is dropped; None for no limit.

    Raises:
        ExceptionGroup: every fork of a level failed; a fork that fails beside others is dropped.
    """
    counts = {"width": width, "children": children, "depth": depth}
    check(trunk, timeout, counts=counts, expand=expand, score=score, done=done)
    async with Grove() as grove:
        best: list[Winner[T]] = []
        for _ in range(depth):
            parents = [winner.branch for winner in best] or [trunk]
            branches = [grove.add(child) for parent in parents for child in await parent.fork(children)]
            level: dict[int, Winner[T]] = {}

            async def arrived(
                index: int, result: T, level: dict[int, Winner[T]] = level, branches: list[Branch] = branches
            ) -> bool:
                level[index] = Winner(branches[index], result, await scored(score, result))
                return False

            errors = await attempt_each(branches, expand, arrived, timeout)
            ranked = sorted(level.items(), key=lambda item: (-item[1].score, item[0]))
            best = checked([winner for _, winner in ranked[:width]] or None, errors)
            grove.prune(winner.branch for winner in best)
            if truth_of(done(best[0].result), "done"):
                break
        grove.take(best[0].branch)
        return best[0]
