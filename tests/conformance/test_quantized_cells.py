"""Cells that are quantised where they are: attention over both kinds, in float64 over what each cell stands for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from agentkv_runtime import _core

from tests import code_rows
from tests.conformance.layers import N_LAYERS, SCALE, VOCAB, Double, Feeder, Float, Shape, rounded

TOLERANCE = 5e-4
"""Over codes the CPU weighs V with 16-bit integers."""


class MixedFeeder(Feeder):
    """Knows which cells are codes."""

    def __init__(self, kv_dtype: str, shape: Shape | None = None, *, capacity: int = 256, min_chunk: int = 16) -> None:
        super().__init__("cpu", kv_dtype, shape or Shape(), capacity=capacity, min_chunk=min_chunk)
        self.codes: set[int] = set()

    def quantize(self, cells: Sequence[int]) -> None:
        self.layer.to_quantized(cells)
        self.codes.update(cells)

    def cells_of(self, seq: int) -> list[int]:
        return [cell + i for _, cell, length in self.cells.seq_runs(seq) for i in range(length)]

    def advance(self, pieces: Mapping[int, Sequence[int]], window: int = 0, sinks: int = 0) -> dict[int, list[Float]]:
        outs = super().advance(pieces, window, sinks)
        for seq, tokens in pieces.items():
            self.codes.difference_update(self.cells_of(seq)[-len(tokens) :])
        return outs

    def check(self, pieces: Mapping[int, Sequence[int]], window: int = 0, sinks: int = 0) -> float:
        outs = self.advance(pieces, window, sinks)
        errors = []
        for seq in pieces:
            is_code = np.array([cell in self.codes for cell in self.cells_of(seq)])
            for layer, out in enumerate(outs[seq]):
                want = self.mixed(layer, self.log[seq], out.shape[1], is_code, window, sinks)
                errors.append(float(np.abs(out - want).max()))
        return max(errors)

    def mixed(
        self, layer: int, log: Sequence[int], last: int, is_code: npt.NDArray[np.bool_], window: int, sinks: int
    ) -> Double:
        """What the last rows of a history give."""
        n = len(log)
        q, k, v = self.rows(layer, log, np.arange(n))
        q = q[:, -last:]
        group = self.shape.heads // self.shape.kv_heads

        def kept(x: Float) -> Double:
            floats = rounded(x, self.kv_dtype)
            codes = code_rows.kept(floats.astype(np.float32), "int8")
            return np.repeat(np.where(is_code[None, :, None], codes, floats), group, axis=0)

        keys, values = kept(k), kept(v)
        scores = np.where(
            is_code, np.einsum("htd,hsd->hts", rounded(q, "int8"), keys), np.einsum("htd,hsd->hts", q, keys)
        )
        rows, columns = np.arange(n - last, n)[:, None], np.arange(n)[None, :]
        hidden = columns > rows
        if window:
            hidden |= (columns <= rows - window) & (columns >= sinks)
        scores = np.where(hidden, -np.inf, scores * SCALE)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out: Double = np.einsum("hts,hsd->htd", weights / weights.sum(-1, keepdims=True), values)
        return out


def tokens(n: int, rng: random.Random) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(n)]


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shape", [Shape(), Shape(2, 4, 80), Shape(1, 4, 64)], ids=str)
def test_the_older_part_of_a_history_is_quantised(kv_dtype: str, shape: Shape) -> None:
    rng = random.Random(1)
    feeder = MixedFeeder(kv_dtype, shape)
    errors = [feeder.check({0: tokens(90, rng)})]
    for end in (64, 70, 90, 100):
        feeder.quantize(feeder.cells_of(0)[:end])
        errors += [feeder.check({0: tokens(n, rng)}) for n in (1, 7, 1)]
    assert max(errors) <= TOLERANCE
    assert errors[1] > 0


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("seed", range(4))
def test_random_courses(kv_dtype: str, seed: int) -> None:
    """Any cells, at any time; on the heap, and in memory of which whole pages are given back."""
    rng = random.Random(seed)
    feeder = MixedFeeder(kv_dtype, Shape(2, 4, 64), capacity=rng.choice([200, 3000]), min_chunk=8)
    window, sinks = rng.choice([(0, 0), (0, 0), (12, 2)])
    errors = [feeder.check({0: tokens(150, rng)}, window, sinks)]
    for _ in range(50):
        live = sorted(feeder.log)
        verb = rng.choice(["advance"] * 5 + ["quantize"] * 3 + ["fork", "fork", "rollback", "close"])
        if verb == "fork":
            feeder.fork(rng.choice(live), max(live) + 1)
        elif verb == "quantize":
            own = feeder.cells_of(rng.choice(live))
            begin = rng.randrange(len(own))
            feeder.quantize(rng.sample(own, min(5, len(own))) if rng.random() < 0.3 else own[begin : begin + 64])
        elif verb == "rollback":
            seq = rng.choice(live)
            feeder.rollback(seq, rng.randrange(1, len(feeder.log[seq]) + 1))
        elif verb == "close" and len(live) > 1:
            seq = rng.choice(live)
            feeder.cells.seq_rm(seq)
            del feeder.log[seq]
        else:
            chosen = rng.sample(live, rng.randrange(1, min(5, len(live)) + 1))
            pieces = {seq: tokens(rng.choice([1, 1, 2, 7, 40]), rng) for seq in chosen}
            if feeder.cells.can_extend(sum(len(piece) for piece in pieces.values())):
                errors.append(feeder.check(pieces, window, sinks))
            else:
                feeder.cells.seq_keep(live[0])
                feeder.log = {live[0]: feeder.log[live[0]]}
    assert len(errors) > 10
    assert max(errors) <= TOLERANCE


def test_memory_of_floats_is_given_back_and_taken_again() -> None:
    rng = random.Random(5)
    shape = Shape(2, 4, 64)
    feeder = MixedFeeder("fp16", shape, capacity=4096)
    for _ in range(16):
        feeder.advance({0: tokens(128, rng)})
    before = feeder.layer.bytes
    own = feeder.cells_of(0)
    feeder.quantize(own[:1536])
    rows = N_LAYERS * 2 * shape.kv_heads
    floats, codes = (2048 - 1536) * rows * 64 * 2, 1536 * rows * (64 + 4)
    assert before == pytest.approx(2048 * rows * 64 * 2, rel=0.05)
    assert feeder.layer.bytes == pytest.approx(floats + codes, rel=0.1)  # 3% of all cells are room ahead
    assert feeder.check({0: tokens(1, rng)}) <= TOLERANCE
    feeder.rollback(0, 512)
    errors = [feeder.check({0: tokens(128, rng)}) for _ in range(8)]  # into cells that were codes
    assert max(errors) <= TOLERANCE
    assert feeder.layer.bytes == pytest.approx((2048 - 512) * rows * 64 * 2 + codes, rel=0.1)


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "bf16"])
def test_what_is_read_is_what_the_codes_stand_for(kv_dtype: str) -> None:
    rng = random.Random(6)
    feeder = MixedFeeder(kv_dtype)
    feeder.advance({0: tokens(70, rng)})
    own = feeder.cells_of(0)
    floats = feeder.layer.read_cells(own)
    feeder.quantize(own[:64])
    read = feeder.layer.read_cells(own)
    assert (read[64:] == floats[64:]).all()
    assert (read[:64] != floats[:64]).any()
    other = MixedFeeder(kv_dtype)
    other.advance({0: feeder.log[0]})
    other.layer.write_cells(other.cells_of(0), read)
    assert (other.layer.read_cells(other.cells_of(0)) == read).all()
    # Both attend over the same numbers now, one of them over their codes.
    one, two = feeder.advance({0: [3]})[0], other.advance({0: [3]})[0]
    assert np.abs(np.array(one) - np.array(two)).max() < 2e-2


def test_cells_move_with_what_they_are() -> None:
    """Codes to where floats were and the other way round, in one call; numbers stay as they are."""
    rng = random.Random(7)
    feeder = MixedFeeder("fp16", capacity=2000)
    feeder.advance({0: tokens(200, rng)})
    own = feeder.cells_of(0)
    feeder.quantize(own[:50] + own[80:90])
    before = feeder.layer.read_cells(own)
    dst = rng.sample(range(200), 100)
    src = rng.sample(range(200), 100)
    feeder.layer.move_cells(src, dst)
    after = feeder.layer.read_cells(own)
    moved = dict(zip(dst, src, strict=True))
    assert (after == before[[moved.get(cell, cell) for cell in own]]).all()
    assert (feeder.layer.bytes, feeder.layer.allocated_cells) > (0, 199)


def test_refusals_change_nothing() -> None:
    feeder = MixedFeeder("fp16")
    feeder.advance({0: [1, 2, 3]})
    before = feeder.layer.read_cells([0, 1, 2])
    for cells in ([0, feeder.layer.allocated_cells], [-1]):
        with pytest.raises(_core.InvalidRange):
            feeder.layer.to_quantized(cells)
    assert (feeder.layer.read_cells([0, 1, 2]) == before).all()
    with pytest.raises(_core.InvalidRange, match="quantised"):
        Feeder("cpu", "int8").layer.to_quantized([])
