"""The CPU byte layer over real bookkeeping: right against float64, and the same bits however a token was fed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from agentkv_runtime import _core
from agentkv_runtime.backends import keys_and_values

from tests import code_rows
from tests.conformance.layers import CODES, TOLERANCE, rounded

Float = npt.NDArray[np.float32]

SCALE = 0.13
VOCAB = 50


class Feeder:
    """One layer whose q, k and v are functions of (token, position), so that a history alone decides every row."""

    def __init__(
        self, kv_dtype: str = "fp16", *, kv_heads: int = 2, heads: int = 4, dim: int = 32, capacity: int = 2048
    ) -> None:
        self.cells = _core.Cells(capacity)
        self.cache = _core.CpuCache(self.cells, 1, kv_heads, dim, kv_dtype, 16)
        random = np.random.default_rng(7)
        self.q = random.standard_normal((heads, VOCAB, dim)).astype(np.float32)
        self.k = random.standard_normal((kv_heads, VOCAB, dim)).astype(np.float32)
        self.v = random.standard_normal((kv_heads, VOCAB, dim)).astype(np.float32)
        self.turn = random.standard_normal((capacity, dim)).astype(np.float32)
        self.log: dict[int, list[int]] = {}

    def step(self, rows: list[tuple[int, list[int]]], window: int = 0) -> list[Float]:
        """Feeds each (sequence, tokens) in one step; returns float32 [heads, len(tokens), dim] for each."""
        self.cells.begin_step([seq for seq, tokens in rows for _ in tokens])
        positions = self.cells.step_positions()
        tokens = np.array([t for _, ts in rows for t in ts])
        turn = self.turn[positions]
        out = self.cache.update_and_attend(
            0, positions, self.q[:, tokens] * turn, self.k[:, tokens] * turn, self.v[:, tokens] + turn, SCALE, window
        )
        self.cells.commit_step()
        for seq, ts in rows:
            self.log.setdefault(seq, []).extend(ts)
        ends = np.cumsum([len(ts) for _, ts in rows])
        return np.split(np.asarray(out), ends[:-1], axis=1)

    def feed(self, seq: int, tokens: list[int], chunk: int, window: int = 0) -> Float:
        outs = [self.step([(seq, tokens[i : i + chunk])], window)[0] for i in range(0, len(tokens), chunk)]
        return np.concatenate(outs, axis=1)

    def fork(self, src: int, dst: int) -> None:
        self.cells.seq_cp(src, dst)
        self.log[dst] = list(self.log[src])

    def rollback(self, seq: int, length: int) -> None:
        self.cells.seq_rm(seq, length)
        del self.log[seq][length:]


def history(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, n)]


@pytest.fixture(params=TOLERANCE)
def kv_dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def restore_settings() -> Iterator[None]:
    threads, isa = _core.get_threads(), _core.get_cpu_isa()
    yield
    _core.set_threads(threads)
    _core.set_cpu_isa(isa)


def reference(feeder: Feeder, tokens: list[int], kv_dtype: str, window: int) -> npt.NDArray[np.float64]:
    n, index = len(tokens), np.array(tokens)
    keys, values = keys_and_values(kv_dtype)
    turn = feeder.turn[:n]
    q = rounded(feeder.q[:, index] * turn, "int8" if kv_dtype in CODES else "fp32")
    k = np.repeat(rounded(feeder.k[:, index] * turn, keys), len(q) // len(feeder.k), axis=0)
    v = np.repeat(rounded(feeder.v[:, index] + turn, values), len(q) // len(feeder.v), axis=0)
    scores = np.einsum("htd,hsd->hts", q, k) * SCALE
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    scores[:, (distance < 0) | ((distance >= window) if window else False)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hts,hsd->htd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.usefixtures("restore_settings")
@pytest.mark.parametrize("window", [0, 90])
@pytest.mark.parametrize(("kv_heads", "heads", "dim"), [(2, 2, 64), (1, 2, 80), (1, 4, 128), (1, 8, 64)])
def test_agrees_with_float64_on_every_instruction_set(
    kv_dtype: str, kv_heads: int, heads: int, dim: int, window: int
) -> None:
    tokens = history(300)
    for isa in _core.cpu_isas():
        _core.set_cpu_isa(isa)
        feeder = Feeder(kv_dtype, kv_heads=kv_heads, heads=heads, dim=dim)
        got = feeder.feed(0, tokens, 100, window)
        want = reference(feeder, tokens, kv_dtype, window)
        np.testing.assert_allclose(got, want, atol=TOLERANCE[kv_dtype], rtol=0, err_msg=isa)


def test_chunks(kv_dtype: str) -> None:
    tokens = history(300)
    want = Feeder(kv_dtype).feed(0, tokens, 1)
    for chunk in (2, 3, 5, 8, 11, 16, 33, 64, 65, 128, 300):
        assert np.array_equal(Feeder(kv_dtype).feed(0, tokens, chunk), want), f"chunks of {chunk}"


def test_forks_beside_others(kv_dtype: str) -> None:
    """64 branches over one trunk, fed together, give what each gives alone."""
    trunk = history(150)
    ends = [history(6, seed=i + 1) for i in range(64)]
    together = Feeder(kv_dtype)
    together.feed(0, trunk, 64)
    for branch in range(1, 64):
        together.fork(0, branch)
    for n in (1, 2, 3, 8, 33, 64):
        fed: dict[int, list[Float]] = {b: [] for b in range(n)}
        for step in range(6):  # decode rows of one branch lie in cells apart from each other
            for branch, out in enumerate(together.step([(b, [ends[b][step]]) for b in range(n)])):
                fed[branch].append(out)
        for branch in {0, n // 2, n - 1}:
            want = Feeder(kv_dtype).feed(0, trunk + ends[branch], 50)[:, -6:]
            assert np.array_equal(np.concatenate(fed[branch], axis=1), want), f"branch {branch} of {n}"
        for branch in range(n):
            together.rollback(branch, len(trunk))


def test_rows_of_prefill_beside_decode(kv_dtype: str) -> None:
    feeder = Feeder(kv_dtype)
    first, second = history(200), history(90, seed=1)
    feeder.feed(0, first[:-2], 7)
    mixed = feeder.step([(1, second[:70]), (0, first[-2:-1])])
    last = feeder.step([(0, first[-1:]), (1, second[70:])])
    want_first, want_second = Feeder(kv_dtype).feed(0, first, 1), Feeder(kv_dtype).feed(0, second, 1)
    assert np.array_equal(np.concatenate([mixed[1], last[0]], axis=1), want_first[:, -2:])
    assert np.array_equal(np.concatenate([mixed[0], last[1]], axis=1), want_second)


def test_rollbacks_and_reused_cells(kv_dtype: str) -> None:
    """Cells that other sequences left behind hold stale bytes and are handed out in holes."""
    feeder = Feeder(kv_dtype)
    for branch in range(5):
        feeder.feed(branch, history(90, seed=branch + 9), 13)
    for branch in (1, 3):
        feeder.rollback(branch, 17)
    tokens = history(260)
    feeder.feed(9, tokens[:200], 31)
    feeder.rollback(9, 120)
    got = feeder.feed(9, tokens[120:], 45)
    assert len(feeder.cells.seq_runs(9)) > 1
    assert np.array_equal(got, Feeder(kv_dtype).feed(0, tokens, 260)[:, 120:])


@pytest.mark.usefixtures("restore_settings")
def test_threads(kv_dtype: str) -> None:
    def outputs() -> list[Float]:
        feeder = Feeder(kv_dtype, kv_heads=1, heads=2)
        outs = [feeder.feed(0, history(1300), 650), feeder.feed(0, history(3), 1)]
        for branch in range(1, 4):
            feeder.fork(0, branch)
        return outs + feeder.step([(b, history(2, seed=b)) for b in range(4)])

    _core.set_threads(1)
    one = outputs()
    _core.set_threads(2)
    for a, b in zip(one, outputs(), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.usefixtures("restore_settings")
def test_levels_with_fma_agree() -> None:
    def output(isa: str, kv_dtype: str) -> Float:
        _core.set_cpu_isa(isa)
        return Feeder(kv_dtype).feed(0, history(150), 50)

    with_fma = [isa for isa in _core.cpu_isas() if isa != "v2"]
    for kv_dtype in ("fp16", *CODES):
        want = output(with_fma[0], kv_dtype)
        assert all(np.array_equal(want, output(isa, kv_dtype)) for isa in with_fma)


@pytest.mark.usefixtures("restore_settings")
@pytest.mark.parametrize("kv_dtype", CODES)
@pytest.mark.parametrize("dim", [8, 40, 64, 80, 128, 200, 256])
def test_codes_are_those_of_the_format(kv_dtype: str, dim: int) -> None:
    """To the byte, on every instruction set: outliers, tiny rows and zeros among them."""
    rows = np.random.default_rng(dim).standard_normal((1, 30, dim)).astype(np.float32)
    rows[0, 1] *= np.float32(1e15)
    rows[0, 2] *= np.float32(1e-15)
    rows[0, 3:9, 0] *= 50
    rows[0, 9] = 0
    planes = [code_rows.packed(rows[0, :9], dtype) for dtype in keys_and_values(kv_dtype)]
    want = np.concatenate([np.concatenate((codes, scales.view(np.uint8)), 1) for codes, scales in planes], 1)
    for isa in _core.cpu_isas():
        _core.set_cpu_isa(isa)
        feeder = Feeder(kv_dtype, kv_heads=1, heads=1, dim=dim, capacity=64)
        feeder.cells.begin_step([0] * 30)
        feeder.cache.update_and_attend(0, feeder.cells.step_positions(), rows, rows, rows, SCALE)
        feeder.cells.commit_step()
        kept = feeder.cache.read_cells(list(range(30)))
        assert np.array_equal(kept[:9], want)
        assert not kept[9].any()


def test_a_row_that_differs_gives_other_bits() -> None:
    """The comparisons above can fail: one other token far back changes the last row."""
    tokens = history(300)
    other = [(tokens[0] + 1) % VOCAB, *tokens[1:]]
    assert not np.array_equal(Feeder().feed(0, tokens, 64)[:, -1], Feeder().feed(0, other, 64)[:, -1])


def refuse(call: Callable[[], object], *parts: str) -> None:
    with pytest.raises(_core.InvalidTensor) as caught:
        call()
    assert all(part in str(caught.value) for part in parts)


def test_refusals_leave_the_step_as_it_was() -> None:
    feeder = Feeder()
    feeder.cells.begin_step([0, 0])
    positions = feeder.cells.step_positions()
    q, k = np.zeros((4, 2, 32), np.float32), np.zeros((2, 2, 32), np.float32)
    attend = feeder.cache.update_and_attend
    refuse(lambda: attend(1, positions, q, k, k, SCALE), "layer 1")
    refuse(lambda: attend(0, positions, q, k[:, :1], k, SCALE), "k is [2, 1, 32]", "[2, 2, 32]")
    refuse(lambda: attend(0, positions, q, k, k[:1], SCALE), "v is [1, 2, 32]")
    assert feeder.cache.bytes == 0
    refuse(lambda: attend(0, positions, q[:3], k, k, SCALE), "3 heads")
    attend(0, positions, q, k, k, SCALE)
    feeder.cells.commit_step()
    refuse(lambda: _core.CpuCache(feeder.cells, 1, 2, 12), "12")
    refuse(lambda: _core.CpuCache(feeder.cells, 1, 2, 16, "int2"), "int2")
    refuse(lambda: _core.set_cpu_isa("v9"), "v9")


def test_pools_grow_by_doubling_up_to_the_capacity() -> None:
    feeder = Feeder("fp16", capacity=100)
    sizes = []
    for _ in range(10):
        feeder.feed(0, history(10), 10)
        sizes.append(feeder.cache.allocated_cells)
    assert sizes == [16, 32, 32, 64, 64, 64, 100, 100, 100, 100]
    assert feeder.cache.bytes == 2 * 2 * 100 * 32 * 2
    with pytest.raises(_core.CacheFull):
        feeder.feed(0, [1], 1)
