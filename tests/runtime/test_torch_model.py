"""The oracle against transformers' own attention without a cache. A wrong oracle hides what it should show."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import FolderFactory
from tests.driver import oracle_driver
from tests.reference import Reference

KINDS = ["llama", "smollm", "qwen2", "qwen3", "mistral", "phi3", "gemma3"]
TOLERANCE = 1e-4


def some_tokens(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 384, n).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [[], [1] * 40, [7, 1, 1, 13], [39]])
def test_chunked_prefill_shows_the_whole_prefix(tiny_hf_folder: FolderFactory, kind: str, chunks: list[int]) -> None:
    folder = tiny_hf_folder(kind)
    tokens = some_tokens(40)
    got = oracle_driver(folder).feed(0, tokens, chunks)
    want = Reference(folder).logits(tokens)
    assert want.std() > 1
    assert np.abs(got - want).max() <= TOLERANCE


def test_a_window_hides_what_lies_before_it(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("mistral", layers=1, window=8)
    oracle = oracle_driver(folder)
    tokens = some_tokens(20)
    other = some_tokens(20, seed=1)[:12] + tokens[12:]
    a = oracle.feed(0, tokens, [5])
    b = oracle.feed(1, other, [3, 9])
    # One layer of window 8: the row at position p sees p - 7 ... p.
    assert np.abs(a[18] - b[18]).max() > 0.1
    np.testing.assert_allclose(a[19], b[19], atol=1e-5)
    np.testing.assert_allclose(a, Reference(folder).logits(tokens), atol=TOLERANCE)


def test_forks_rollbacks_and_mixed_steps(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("llama")
    oracle, reference = oracle_driver(folder), Reference(folder)
    trunk = some_tokens(11)
    oracle.feed(0, trunk, [4])
    for child in (1, 2):
        oracle.fork(0, child)
    # One step: a decode row of the trunk between prefills of both children.
    logits = oracle.advance({1: some_tokens(3, 1), 0: [5], 2: some_tokens(6, 2)})
    for seq in (0, 1, 2):
        want = reference.next_logits(oracle.logs[seq])
        np.testing.assert_allclose(logits[seq][-1], want, atol=TOLERANCE)
    oracle.rollback(2, 9)
    again = oracle.feed(2, some_tokens(2, 3))
    np.testing.assert_allclose(again[-1], reference.next_logits(oracle.logs[2]), atol=TOLERANCE)
    np.testing.assert_allclose(oracle.step([(1, 7)])[0], reference.next_logits(oracle.logs[1]), atol=TOLERANCE)


@pytest.mark.parametrize(("kv_dtype", "relative"), [("fp16", 2**-10), ("bf16", 2**-7)])
def test_half_pools_err_by_their_rounding(tiny_hf_folder: FolderFactory, kv_dtype: str, relative: float) -> None:
    folder = tiny_hf_folder("llama")
    tokens = some_tokens(40)
    want = Reference(folder).logits(tokens)
    error = np.abs(oracle_driver(folder, kv_dtype=kv_dtype).feed(0, tokens, [9]) - want).max()
    assert 0 < error <= 16 * relative * want.std()


def test_pools_grow_by_doubling_and_stop(tiny_hf_folder: FolderFactory) -> None:
    oracle = oracle_driver(tiny_hf_folder("llama"), capacity=20, min_chunk=4)
    assert oracle.program.cache.bytes == 0
    sizes = []
    for _ in range(20):
        oracle.step([(0, 3)])
        sizes.append(oracle.program.cache.allocated_cells)
    assert sizes == [4] * 4 + [8] * 4 + [16] * 8 + [20] * 4
    assert oracle.program.cache.bytes == 2 * 2 * 2 * 20 * 16 * 4  # layers, K and V, heads, cells, head_dim, float32


def test_a_failed_forward_leaves_nothing(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("llama")
    oracle, reference = oracle_driver(folder), Reference(folder)
    tokens = some_tokens(10)
    oracle.feed(0, tokens[:6])
    with pytest.raises(IndexError):
        oracle.step([(0, 9999), (0, 1)])
    assert oracle.cells.seq_len(0) == oracle.cells.used == 6
    np.testing.assert_allclose(oracle.feed(0, tokens[6:]), reference.logits(tokens)[6:], atol=TOLERANCE)


def test_no_rows_of_logits(tiny_hf_folder: FolderFactory) -> None:
    oracle = oracle_driver(tiny_hf_folder("llama"))
    logits = oracle.step([(0, 3)], wanted=[])
    assert logits.shape == (0, 384)
    assert logits.dtype == np.float32
