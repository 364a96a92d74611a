"""The oracle against transformers' own attention without a cache. A wrong oracle hides what it should show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from agentkv_runtime.eager.bookkeeping import ReferenceCells
from agentkv_runtime.eager.cache import TorchCache
from agentkv_runtime.eager.model import EagerModel

from tests.conftest import FolderFactory
from tests.reference import Reference

KINDS = ["llama", "smollm", "qwen2", "qwen3", "mistral", "phi3", "gemma3"]
TOLERANCE = 1e-4


class Oracle:
    """A model, a cache and its bookkeeping, driven step by step."""

    def __init__(self, folder: Path, *, capacity: int = 256, kv_dtype: str = "fp32", min_chunk: int = 8) -> None:
        self.model = EagerModel(folder)
        self.cells = ReferenceCells(capacity)
        self.cache = TorchCache(
            self.cells, n_layers=self.model.n_layers, capacity=capacity, kv_dtype=kv_dtype, min_chunk=min_chunk
        )

    def step(self, rows: Sequence[tuple[int, int]]) -> npt.NDArray[np.float32]:
        """Feeds (sequence, token) rows; logits of every row."""
        self.cells.begin_step([seq for seq, _ in rows])
        positions = self.cells.step_positions()
        logits = self.model.forward(self.cache, [token for _, token in rows], positions, range(len(rows)))
        self.cells.commit_step()
        return logits.numpy()

    def feed(self, seq: int, tokens: Sequence[int], chunks: Sequence[int]) -> npt.NDArray[np.float32]:
        """Feeds tokens in chunks of the given sizes, then the rest at once; logits of every row."""
        rows, at = [], 0
        for size in [*chunks, len(tokens)]:
            piece = tokens[at : at + size]
            at += len(piece)
            if len(piece):
                rows.append(self.step([(seq, int(token)) for token in piece]))
        return np.concatenate(rows)


def some_tokens(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 384, n).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [[], [1] * 40, [7, 1, 1, 13], [39]])
def test_chunked_prefill_shows_the_whole_prefix(tiny_hf_folder: FolderFactory, kind: str, chunks: list[int]) -> None:
    folder = tiny_hf_folder(kind)
    tokens = some_tokens(40)
    got = Oracle(folder).feed(0, tokens, chunks)
    want = Reference(folder).logits(tokens)
    assert want.std() > 1
    assert np.abs(got - want).max() <= TOLERANCE


def test_a_window_hides_what_lies_before_it(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("mistral", layers=1, window=8)
    oracle = Oracle(folder)
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
    oracle, reference = Oracle(folder), Reference(folder)
    trunk = some_tokens(11)
    oracle.feed(0, trunk, [4])
    for child in (1, 2):
        oracle.cells.seq_cp(0, child)
    left, right = trunk + some_tokens(3, 1), trunk + some_tokens(6, 2)
    # One step: a decode row of the trunk between prefills of both children.
    rows = [(1, t) for t in left[11:]] + [(0, 5)] + [(2, t) for t in right[11:]]
    logits = oracle.step(rows)
    np.testing.assert_allclose(logits[2], reference.next_logits(left), atol=TOLERANCE)
    np.testing.assert_allclose(logits[3], reference.next_logits([*trunk, 5]), atol=TOLERANCE)
    np.testing.assert_allclose(logits[9], reference.next_logits(right), atol=TOLERANCE)
    oracle.cells.seq_rm(2, 9)
    again = right[:9] + some_tokens(2, 3)
    np.testing.assert_allclose(oracle.feed(2, again[9:], [])[-1], reference.next_logits(again), atol=TOLERANCE)
    np.testing.assert_allclose(oracle.step([(1, 7)])[0], reference.next_logits([*left, 7]), atol=TOLERANCE)


@pytest.mark.parametrize(("kv_dtype", "relative"), [("fp16", 2**-10), ("bf16", 2**-7)])
def test_half_pools_err_by_their_rounding(tiny_hf_folder: FolderFactory, kv_dtype: str, relative: float) -> None:
    folder = tiny_hf_folder("llama")
    tokens = some_tokens(40)
    want = Reference(folder).logits(tokens)
    error = np.abs(Oracle(folder, kv_dtype=kv_dtype).feed(0, tokens, [9]) - want).max()
    assert 0 < error <= 16 * relative * want.std()


def test_pools_grow_by_doubling_and_stop(tiny_hf_folder: FolderFactory) -> None:
    oracle = Oracle(tiny_hf_folder("llama"), capacity=20, min_chunk=4)
    assert oracle.cache.kv_bytes == 0
    sizes = []
    for _ in range(20):
        oracle.step([(0, 3)])
        sizes.append(oracle.cache.allocated_cells)
    assert sizes == [4] * 4 + [8] * 4 + [16] * 8 + [20] * 4
    assert oracle.cache.kv_bytes == 2 * 2 * 2 * 20 * 16 * 4  # layers, K and V, heads, cells, head_dim, float32


def test_a_failed_forward_leaves_nothing(tiny_hf_folder: FolderFactory) -> None:
    folder = tiny_hf_folder("llama")
    oracle, reference = Oracle(folder), Reference(folder)
    tokens = some_tokens(10)
    oracle.feed(0, tokens[:6], [])
    oracle.cells.begin_step([0, 0])
    with pytest.raises(IndexError):
        oracle.model.forward(oracle.cache, [9999, 1], oracle.cells.step_positions(), [0])
    oracle.cells.abort_step()
    assert oracle.cells.seq_len(0) == oracle.cells.used == 6
    np.testing.assert_allclose(oracle.feed(0, tokens[6:], []), reference.logits(tokens)[6:], atol=TOLERANCE)


def test_no_rows_of_logits(tiny_hf_folder: FolderFactory) -> None:
    oracle = Oracle(tiny_hf_folder("llama"))
    oracle.cells.begin_step([0])
    logits = oracle.model.forward(oracle.cache, [3], [0], [])
    assert logits.shape == (0, oracle.model.vocab_size)
    assert logits.dtype == torch.float32
