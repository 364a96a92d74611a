"""Draft trees as Python sees it; the bookkeeping itself is tested in tests/core."""

from __future__ import annotations

import numpy as np
import pytest
from agentkv_runtime import _core


def step(cells: _core.SeqCache, rows: list[int]) -> _core.StepPlan:
    cells.begin_step(rows)
    plan = cells.plan(cells.step_positions())
    cells.commit_step()
    return plan


@pytest.fixture
def cells() -> _core.Cells:
    """Two committed tokens; nodes 0 and its children 1 and 2."""
    cells = _core.Cells(16)
    step(cells, [0, 0])
    cells.propose([-1, 0, 0])
    step(cells, [0, 0, 0])
    return cells


def test_a_tree_cache_is_a_seq_cache_with_a_mask_of_its_own(cells: _core.Cells) -> None:
    assert isinstance(cells, _core.SeqCache)
    assert cells.frontier_size(0) == 3
    cells.propose([2])
    plan = step(cells, [0, 1])
    assert plan.kind == _core.StepPlan.Kind.Explicit
    assert plan.tails == [[(2, 2, 1), (3, 4, 2)], []]
    np.testing.assert_array_equal(plan.mask()[0], [True, True, True, False, True, True, False])
    np.testing.assert_array_equal(plan.mask()[1], [False] * 6 + [True])


def test_commit_moves_through_the_callable(cells: _core.Cells) -> None:
    moved: list[tuple[list[int], list[int]]] = []
    cells.commit([0, 2], move_cells=lambda src, dst: moved.append((src, dst)))
    assert moved == [([4], [3])]
    assert cells.seq_runs(0) == [(0, 0, 4)]


def test_a_mover_serves_every_commit(cells: _core.Cells) -> None:
    moved: list[tuple[list[int], list[int]]] = []
    cells.set_mover(lambda src, dst: moved.append((src, dst)))
    cells.commit([0, 2])
    assert cells.seq_runs(0) == [(0, 0, 4)]
    for given in (lambda _src, _dst: None, None):
        cells.propose([-1, -1])
        step(cells, [0, 0])
        cells.commit([1], move_cells=given)
    assert moved == [([4], [3]), ([6], [5])]
    cells.set_mover(None)
    cells.propose([-1, -1])
    step(cells, [0, 0])
    cells.commit([1])
    assert len(moved) == 2
    assert cells.seq_runs(0) == [(0, 0, 6), (6, 7, 1)]


def test_commit_without_a_callable_moves_nothing(cells: _core.Cells) -> None:
    cells.commit([0, 2])
    assert cells.seq_runs(0) == [(0, 0, 3), (3, 4, 1)]


def test_what_the_callable_raises_passes_and_drops_the_frontier(cells: _core.Cells) -> None:
    def fail(src: list[int], dst: list[int]) -> None:
        raise KeyError(src[0])

    with pytest.raises(KeyError, match="4"):
        cells.commit([0, 2], move_cells=fail)
    assert (cells.used, cells.frontier_size(0)) == (2, 0)


def test_refusals_are_typed(cells: _core.Cells) -> None:
    with pytest.raises(_core.InvalidTree, match="node 3 has parent 3"):
        cells.propose([3])
    with pytest.raises(_core.InvalidTree, match="its parent is 0"):
        cells.commit([0, 1, 2])
    with pytest.raises(_core.InvalidStep, match="frontier of 3 nodes"):
        cells.begin_step([0])
