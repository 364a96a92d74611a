"""What every byte layer must do, against attention in float64 over what the pools keep."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime.backends import keys_and_values

from tests.conformance.layers import CODES, LAYERS, N_LAYERS, SCALE, TOLERANCE, VOCAB, Feeder, Shape, rounded, row_bytes
from tests.conformance.trees import path_to


@pytest.fixture(params=LAYERS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=TOLERANCE)
def kv_dtype(request: pytest.FixtureRequest, backend: str) -> str:
    if backend == "mlx" and request.param in CODES:
        pytest.skip("MLX's codes are others: tests/runtime/test_mlx_cache.py")
    return str(request.param)


def tokens(n: int, rng: random.Random) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(n)]


@pytest.mark.parametrize("shape", [Shape(), Shape(1, 8, 64), Shape(2, 2, 80), Shape(1, 3, 128)], ids=str)
def test_a_prompt_in_chunks_and_its_continuation(backend: str, kv_dtype: str, shape: Shape) -> None:
    rng = random.Random(1)
    feeder = Feeder(backend, kv_dtype, shape)
    errors = [feeder.check({0: tokens(n, rng)}) for n in (37, 1, 9, 1, 1, 64, 1)]
    assert max(errors) <= feeder.tolerance


def test_forks_rollbacks_holes_and_mixed_steps(backend: str, kv_dtype: str) -> None:
    rng = random.Random(2)
    feeder = Feeder(backend, kv_dtype)
    errors = [feeder.check({0: tokens(23, rng)})]
    for child in range(1, 8):
        feeder.fork(0, child)
    for _ in range(3):  # eight branches decode in one step
        errors.append(feeder.check({seq: tokens(1, rng) for seq in range(8)}))
    errors.append(feeder.check({0: tokens(1, rng), 8: tokens(31, rng), 3: tokens(2, rng)}))
    for seq, length in ((1, 23), (2, 11), (5, 1)):
        feeder.rollback(seq, length)
    feeder.cells.seq_rm(4)
    del feeder.log[4]
    # Freed cells hold stale bytes and are handed out again, out of order.
    errors.append(feeder.check({9: tokens(40, rng)}))
    assert len(feeder.cells.seq_runs(9)) > 1
    errors.append(feeder.check({seq: tokens(3, rng) for seq in (5, 9, 2, 1)}))
    feeder.cells.seq_keep(9)
    errors.append(feeder.check({9: tokens(5, rng)}))
    assert max(errors) <= feeder.tolerance


@pytest.mark.parametrize("seed", range(4))
def test_random_courses(backend: str, kv_dtype: str, seed: int) -> None:
    """Whatever branches do in whatever order: every row gives what its history says."""
    rng = random.Random(seed)
    feeder = Feeder(backend, kv_dtype, capacity=200, min_chunk=8)
    window, sinks = rng.choice([(0, 0), (0, 0), (12, 0), (12, 2)])
    errors = [feeder.check({0: tokens(rng.randrange(1, 20), rng)}, window, sinks)]
    for _ in range(60):
        live = sorted(feeder.log)
        verb = rng.choice(["advance"] * 5 + ["fork", "fork", "rollback", "close", "abort"])
        if verb == "fork":
            feeder.fork(rng.choice(live), max(live) + 1)
        elif verb == "rollback":
            seq = rng.choice(live)
            feeder.rollback(seq, rng.randrange(1, len(feeder.log[seq]) + 1))
        elif verb == "close" and len(live) > 1:
            seq = rng.choice(live)
            feeder.cells.seq_rm(seq)
            del feeder.log[seq]
        else:
            chosen = rng.sample(live, rng.randrange(1, min(5, len(live)) + 1))
            pieces = {seq: tokens(rng.choice([1, 1, 1, 2, 7]), rng) for seq in chosen}
            if verb == "abort":
                feeder.cells.begin_step([seq for seq, piece in pieces.items() for _ in piece])
                feeder.run([token for piece in pieces.values() for token in piece], window, sinks)
                feeder.cells.abort_step()
            elif feeder.cells.can_extend(sum(len(piece) for piece in pieces.values())):
                errors.append(feeder.check(pieces, window, sinks))
            else:
                feeder.cells.seq_keep(live[0])
                feeder.log = {live[0]: feeder.log[live[0]]}
    assert len(errors) > 20
    assert max(errors) <= feeder.tolerance


@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (8, 0), (8, 3), (100, 0)])
def test_windows(backend: str, window: int, sinks: int) -> None:
    rng = random.Random(3)
    feeder = Feeder(backend)
    errors = [feeder.check({0: tokens(n, rng)}, window, sinks) for n in (20, 1, 7, 1)]
    feeder.fork(0, 1)
    errors += [feeder.check({0: tokens(1, rng), 1: tokens(4, rng)}, window, sinks) for _ in range(3)]
    assert max(errors) <= feeder.tolerance


def test_draft_trees_and_what_is_accepted_of_them(backend: str, kv_dtype: str) -> None:
    rng = random.Random(4)
    feeder = Feeder(backend, kv_dtype, capacity=160)
    feeder.advance({0: tokens(30, rng)})
    feeder.fork(0, 1)
    moved: list[int] = []

    def move_cells(src: list[int], dst: list[int]) -> None:
        moved.extend(dst)
        feeder.layer.move_cells(src, dst)

    for _ in range(6):
        for seq in (0, 1):
            parents = [rng.randrange(-1, node) for node in range(rng.randrange(2, 8))]
            drafted = tokens(1 + len(parents), rng)  # the sequence's own next token comes first
            feeder.cells.propose(parents, seq)
            feeder.cells.begin_step([seq] * len(drafted))
            outs = feeder.run(drafted)
            feeder.cells.commit_step()
            feeder.log[seq].append(drafted[0])
            assert feeder.error(feeder.log[seq], [out[:, :1] for out in outs]) <= feeder.tolerance
            for node in range(len(parents)):
                path = path_to(node, parents)
                log = feeder.log[seq] + [drafted[1 + at] for at in path]
                assert feeder.error(log, [out[:, 1 + node : 2 + node] for out in outs]) <= feeder.tolerance
            accepted = path_to(rng.randrange(len(parents)), parents)
            feeder.cells.commit(accepted, seq, move_cells)
            feeder.log[seq] += [drafted[1 + node] for node in accepted]
            assert feeder.check({seq: tokens(1, rng)}) <= feeder.tolerance
    assert moved


def test_cells_move_as_if_all_were_read_first(backend: str, kv_dtype: str) -> None:
    rng = random.Random(5)
    feeder = Feeder(backend, kv_dtype)
    feeder.advance({0: tokens(6, rng)})
    order = [3, 0, 5, 1, 2, 4]  # a permutation with cycles; K of cell c goes to order[c]
    feeder.layer.move_cells(list(range(6)), order)
    # Attention does not mind the order of what it sees, so the same set of rows gives the same result ...
    assert feeder.check({0: tokens(1, rng)}) <= feeder.tolerance
    # ... and overwriting all but one cell shows where its bytes went.
    feeder.layer.move_cells([3] * 5, [0, 1, 2, 4, 5])
    feeder.log[0] = [feeder.log[0][0]]
    feeder.cells.seq_rm(0, 6)
    positions = np.array([6], dtype=np.int64)
    feeder.cells.begin_step([0])
    q, k, v = feeder.rows(0, [7], positions)
    # A key that outscores nothing: the row sees six copies of cell 0's value and its own.
    out = feeder.layer.update_and_attend(0, positions, q, k - 1e4 * q[:: len(q) // len(k)], v, SCALE)
    feeder.cells.abort_step()
    want = rounded(feeder.rows(0, [feeder.log[0][0]], np.array([0]))[2], keys_and_values(kv_dtype)[1])
    np.testing.assert_allclose(out, np.repeat(want, len(q) // len(want), axis=0), atol=0.02, rtol=0.01)


def refuse(error: type[Exception], call: Callable[[], object], *parts: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_moves_are_refused_outside_the_pool(backend: str) -> None:
    feeder = Feeder(backend)
    feeder.layer.move_cells([0], [1])  # nothing is stored yet
    feeder.advance({0: tokens(4, random.Random(6))})
    refuse(_core.InvalidRange, lambda: feeder.layer.move_cells([0], [16]), "16")
    refuse(_core.InvalidRange, lambda: feeder.layer.move_cells([-1], [0]), "-1")
    refuse(_core.InvalidRange, lambda: feeder.layer.move_cells([1], [2, 3]), "1", "2")
    assert feeder.check({0: [1]}) <= feeder.tolerance


def test_cells_are_read_and_written_back(backend: str, kv_dtype: str) -> None:
    rng = random.Random(8)
    saved, fresh = Feeder(backend, kv_dtype), Feeder(backend, kv_dtype)
    saved.advance({0: tokens(21, rng)})
    kept = saved.layer.read_cells(list(range(21)))
    assert kept.shape == (21, saved.layer.cell_bytes)
    assert saved.layer.cell_bytes == N_LAYERS * 2 * sum(row_bytes(32, dtype) for dtype in keys_and_values(kv_dtype))
    # Another cache, where the same positions lie elsewhere, in an order of their own, and hold other rows so far.
    fresh.advance({1: tokens(5, rng)})
    fresh.advance({0: tokens(21, rng)})
    fresh.cells.seq_rm(1)
    cells = [cell + i for _, cell, n in fresh.cells.seq_runs(0) for i in range(n)]
    fresh.layer.write_cells(cells[:9], kept[:9])
    fresh.layer.write_cells(cells[9:][::-1], np.ascontiguousarray(kept[9:][::-1]))
    assert fresh.layer.read_cells(cells).tobytes() == kept.tobytes()
    fresh.log[0] = list(saved.log[0])
    assert fresh.check({0: tokens(3, rng)}) <= fresh.tolerance


def test_cells_outside_the_pool_are_neither_read_nor_written(backend: str) -> None:
    feeder = Feeder(backend)
    feeder.advance({0: tokens(4, random.Random(9))})
    kept = feeder.layer.read_cells([0, 1])
    refuse(_core.InvalidRange, lambda: feeder.layer.read_cells([16]), "cell 16", "[0, 16)")
    refuse(_core.InvalidRange, lambda: feeder.layer.read_cells([-1]), "cell -1")
    refuse(_core.InvalidRange, lambda: feeder.layer.write_cells([0, 256], kept), "cell 256", "[0, 256)")
    refuse(_core.InvalidRange, lambda: feeder.layer.write_cells([0], kept), "1 cells")
    refuse(_core.InvalidRange, lambda: feeder.layer.write_cells([0, 1], kept.reshape(1, -1)), "2 cells")
    with pytest.raises((TypeError, _core.InvalidRange)):
        feeder.layer.write_cells([0, 1], kept.astype(np.float32))  # type: ignore[arg-type]
    assert feeder.layer.read_cells([]).shape[0] == 0
    assert feeder.check({0: [1]}) <= feeder.tolerance
    feeder.layer.write_cells([200, 201], kept)  # allocates
    assert feeder.layer.allocated_cells == 256
    assert feeder.layer.read_cells([201, 200]).tobytes() == np.ascontiguousarray(kept[::-1]).tobytes()
    assert feeder.check({0: [2]}) <= feeder.tolerance


def test_refusals_change_nothing(backend: str) -> None:
    rng = random.Random(7)
    feeder = Feeder(backend)
    feeder.check({0: tokens(5, rng)})
    allocated = feeder.layer.bytes
    feeder.cells.begin_step([0, 0])
    positions = np.array(feeder.cells.step_positions(), dtype=np.int64)
    q, k, v = feeder.rows(0, [1, 2], positions)
    attend = feeder.layer.update_and_attend
    refuse(_core.InvalidTensor, lambda: attend(N_LAYERS, positions, q, k, v, SCALE), f"layer {N_LAYERS}")
    refuse(_core.InvalidTensor, lambda: attend(-1, positions, q, k, v, SCALE), "layer -1")
    refuse(_core.InvalidTensor, lambda: attend(0, positions, q, k[:, :1].copy(), v, SCALE), "k ")
    refuse(_core.InvalidTensor, lambda: attend(0, positions, q, k, v[:1].copy(), SCALE), "v ")
    refuse(_core.InvalidTensor, lambda: attend(0, positions, q[:3].copy(), k, v, SCALE), "3")
    refuse(_core.InvalidTensor, lambda: attend(0, positions, q[..., :16].copy(), k, v, SCALE), "16")
    refuse(_core.InvalidStep, lambda: attend(0, positions + 1, q, k, v, SCALE))
    assert feeder.layer.bytes == allocated
    feeder.cells.abort_step()
    refuse(_core.InvalidStep, lambda: attend(0, positions, q, k, v, SCALE))
    assert feeder.check({0: tokens(3, rng)}) <= feeder.tolerance


def test_an_aborted_step_is_forgotten(backend: str) -> None:
    rng = random.Random(8)
    feeder = Feeder(backend)
    feeder.check({0: tokens(20, rng)})
    feeder.cells.begin_step([0] * 9)
    positions = np.array(feeder.cells.step_positions(), dtype=np.int64)
    feeder.layer.update_and_attend(0, positions, *feeder.rows(0, tokens(9, rng), positions), SCALE)
    feeder.cells.abort_step()  # before the second layer was written
    assert feeder.check({0: tokens(2, rng)}) <= feeder.tolerance
    assert feeder.check({0: tokens(30, rng)}) <= feeder.tolerance


def test_pools_grow_by_doubling_up_to_the_capacity(backend: str, kv_dtype: str) -> None:
    rng = random.Random(9)
    shape = Shape()
    feeder = Feeder(backend, kv_dtype, shape, capacity=100)
    row_pair = sum(row_bytes(shape.dim, dtype) for dtype in keys_and_values(kv_dtype))
    assert (feeder.layer.bytes, feeder.layer.allocated_cells) == (0, 0)
    sizes = []
    for _ in range(10):
        assert feeder.check({0: tokens(10, rng)}) <= feeder.tolerance
        sizes.append(feeder.layer.allocated_cells)
        assert feeder.layer.bytes == N_LAYERS * sizes[-1] * shape.kv_heads * row_pair
    assert sizes == [16, 32, 32, 64, 64, 64, 100, 100, 100, 100]
    with pytest.raises(_core.CacheFull):
        feeder.advance({0: [1]})
    feeder.rollback(0, 99)
    assert feeder.check({0: [2]}) <= feeder.tolerance


def test_halves_saturate(backend: str) -> None:
    """One outlier must not turn a whole row into NaN."""
    feeder = Feeder(backend, "fp16")
    feeder.v[:, 0, 5, 3] = 1e9
    assert np.isfinite(feeder.advance({0: [5, 6, 7]})[0][0]).all()
    log = feeder.log[0]
    out = feeder.advance({0: [8]})[0][0]
    want = feeder.reference(0, [*log[:3], 8], 1)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


def test_an_unknown_dtype_is_refused(backend: str) -> None:
    with pytest.raises(_core.InvalidTensor, match="int2"):
        Feeder(backend, "int2")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_with_its_branch(backend: str, kv_dtype: str, value: float) -> None:
    rng = random.Random(10)
    feeder = Feeder(backend, kv_dtype)
    feeder.check({0: tokens(9, rng)})
    feeder.fork(0, 1)
    bad = VOCAB - 1
    feeder.k[:, 0, bad, 0] = feeder.v[:, 1, bad, 2] = value
    other = [token % bad for token in tokens(6, rng)]
    outs = feeder.advance({0: [bad], 1: other[:1]})  # in one step with the other branch, and before it
    assert feeder.error(feeder.log[1], outs[1]) <= feeder.tolerance
    outs = feeder.advance({1: other[1:3], 0: [3]})
    assert feeder.error(feeder.log[1], outs[1]) <= feeder.tolerance
    feeder.cells.seq_rm(0)
    assert feeder.check({1: other[3:]}) <= feeder.tolerance  # in the cells that branch 0 left
