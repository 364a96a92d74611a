"""A Python callable as a native program: what it is given, what it may return, what becomes of its errors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from agentkv_runtime import _core

VOCAB = 5


def rows(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def program(forward: Callable[..., Any]) -> _core.PythonRunner:
    return _core.PythonRunner(forward, vocab_size=VOCAB, max_tokens=8, max_logits=4)


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
def test_forward_gives_what_the_callable_returned(wrap: Callable[..., Any]) -> None:
    seen: list[npt.NDArray[np.int64]] = []

    def forward(tokens: Any, positions: Any, indices: Any) -> Any:
        seen.extend((tokens, positions, indices))
        return wrap((tokens[indices][:, None] * 10 + np.arange(VOCAB)).astype(np.float32))

    one = program(forward)
    assert (one.vocab_size, one.max_tokens, one.max_logits) == (VOCAB, 8, 4)
    logits = one.forward(rows(7, 8, 9), rows(0, 1, 2), rows(2, 0))
    np.testing.assert_array_equal(logits, [[90, 91, 92, 93, 94], [70, 71, 72, 73, 74]])
    assert logits.dtype == np.float32
    assert one.forward(rows(7), rows(0), rows()).shape == (0, VOCAB)
    # Arguments are the callable's own, whatever the caller did with its arrays since.
    assert [array.tolist() for array in seen[:3]] == [[7, 8, 9], [0, 1, 2], [2, 0]]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (np.zeros((1, VOCAB + 1), np.float32), r"\[1, 6\], not \[1, 5\]"),
        (np.zeros((2, VOCAB), np.float32), r"\[2, 5\], not \[1, 5\]"),
        (np.zeros((1, VOCAB), np.float64), "contiguous float32"),
        (np.zeros((VOCAB, 1), np.float32).T[:, ::-1], "contiguous float32"),
        (None, "NoneType"),
    ],
)
def test_a_wrong_answer_is_a_failed_forward(returned: Any, says: str) -> None:
    with pytest.raises(_core.ForwardFailed, match=says):
        program(lambda *_: returned).forward(rows(1), rows(0), rows(0))


def test_features_come_with_the_logits() -> None:
    def forward(tokens: Any, _positions: Any, indices: Any) -> Any:
        return np.zeros((len(indices), VOCAB), np.float32), np.repeat(tokens[:, None], 3, 1).astype(np.float32)

    one = _core.PythonRunner(forward, vocab_size=VOCAB, feature_dim=3)
    assert one.forward(rows(7, 8), rows(0, 1), rows(1)).shape == (1, VOCAB)
    np.testing.assert_array_equal(one.features(), [[7, 7, 7], [8, 8, 8]])
    assert (one.feature_dim, program(forward).feature_dim) == (3, 0)
    assert program(forward).features().shape == (0, 0)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (np.zeros((1, VOCAB), np.float32), "ndarray, not a tuple"),
        ((np.zeros((1, VOCAB), np.float32), np.zeros((2, 3), np.float32)), r"features \[2, 3\], not \[1, 3\]"),
        ((np.zeros((1, VOCAB), np.float32), None), "features of type NoneType"),
    ],
)
def test_wrong_features_are_a_failed_forward(returned: Any, says: str) -> None:
    one = _core.PythonRunner(lambda *_: returned, vocab_size=VOCAB, feature_dim=3)
    with pytest.raises(_core.ForwardFailed, match=says):
        one.forward(rows(1), rows(0), rows(0))


def test_an_exception_is_a_failed_forward_that_names_it() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def forward(tokens: Any, *_: Any) -> Any:
        raise OddError if tokens[0] else KeyError("layer 5")

    failing = program(forward)
    with pytest.raises(_core.ForwardFailed, match="KeyError: 'layer 5'"):
        failing.forward(rows(0), rows(0), rows(0))
    with pytest.raises(_core.ForwardFailed, match="OddError"):
        failing.forward(rows(1), rows(0), rows(0))


def test_a_cycle_through_the_callable_is_collected() -> None:
    class Owner:
        def __init__(self) -> None:
            self.program = program(self.forward)

        def forward(self, *_: Any) -> Any:
            raise NotImplementedError

    alive = weakref.ref(Owner())
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_must_be_positive(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(_core.ProgramError, match="at least 1"):
        _core.PythonRunner(lambda: None, vocab_size=sizes[0], max_tokens=sizes[1], max_logits=sizes[2])
