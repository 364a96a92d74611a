"""Decode, sequence and tree sessions: three faces of one bookkeeping over one program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.sessions import make_decode_session, make_seq_session, make_tree_session

from tests.conftest import FolderFactory

TOKENS = [3, 141, 59, 26, 53, 58, 97, 93]


@pytest.fixture(scope="module")
def folder(tiny_exported_folder: FolderFactory) -> Path:
    return tiny_exported_folder("llama")


def test_the_three_faces_give_the_same_bits(folder: Path) -> None:
    decode = make_decode_session(folder, capacity=32, kv_dtype="fp32")
    seq = make_seq_session(folder, capacity=32, kv_dtype="fp32", max_sequences=4)
    tree = make_tree_session(folder, capacity=32, kv_dtype="fp32")
    want = decode.forward(TOKENS)
    assert want.shape == (len(TOKENS), decode.vocab_size)
    halves = [seq.forward(TOKENS[:3], [2] * 3), seq.forward(TOKENS[3:], [2] * 5)]
    assert np.array_equal(np.concatenate(halves), want)
    first = tree.forward(TOKENS[:3], [0] * 3)
    tree.cache.propose([-1, 0, 1, 2, 3])
    drafted = tree.forward(TOKENS[3:], [0] * 5)
    tree.cache.commit([0, 1, 2, 3, 4])
    assert np.array_equal(np.concatenate([first, drafted]), want)
    assert [len(decode), seq.cache.seq_len(2), tree.cache.seq_len(0)] == [len(TOKENS)] * 3


def test_a_decode_session_rewinds(folder: Path) -> None:
    session = make_decode_session(folder, capacity=16, kv_dtype="fp32")
    want = session.forward(TOKENS)
    session.rewind(3)
    assert len(session) == 3
    assert np.array_equal(session.forward(TOKENS[3:]), want[3:])
    with pytest.raises(_core.InvalidRange, match="length 9"):
        session.rewind(9)
    session.rewind(0)
    session.rewind(0)
    assert np.array_equal(session.forward(TOKENS[:1], rows=[0]), want[:1])


def test_sequences_share_a_prefill(folder: Path) -> None:
    session = make_seq_session(folder, capacity=16, kv_dtype="fp32")
    session.forward(TOKENS, [0] * len(TOKENS), rows=[])
    for sample in (1, 2):
        session.cache.seq_cp(0, sample)
    both = session.forward([7, 9], [1, 2])
    assert session.cache.used == len(TOKENS) + 2
    alone = make_decode_session(folder, capacity=16, kv_dtype="fp32")
    alone.forward(TOKENS, rows=[])
    assert np.array_equal(alone.forward([9]), both[1:])
    session.cache.seq_keep(2)
    assert session.cache.used == len(TOKENS) + 1


def test_a_wrong_branch_of_a_tree_leaves_nothing(folder: Path) -> None:
    session = make_tree_session(folder, capacity=32, kv_dtype="fp32")
    session.forward(TOKENS[:4], [0] * 4, rows=[])
    session.cache.propose([-1, -1, 1])
    session.forward([1, TOKENS[4], TOKENS[5]], [0] * 3)
    session.cache.commit([1, 2])
    alone = make_decode_session(folder, capacity=32, kv_dtype="fp32")
    alone.forward(TOKENS[:6], rows=[])
    assert np.array_equal(session.forward(TOKENS[6:], [0] * 2), alone.forward(TOKENS[6:]))


def test_a_forward_that_raises_leaves_the_session_as_it_was(folder: Path) -> None:
    session = make_decode_session(folder, capacity=8, kv_dtype="fp32")
    want = session.forward(TOKENS[:4])
    for bad, error in (([999_999], _core.InvalidTensor), ([1] * 5, _core.CacheFull), ([], _core.InvalidStep)):
        with pytest.raises(error):
            session.forward(bad)
        assert len(session) == 4
    session.rewind(0)
    assert np.array_equal(session.forward(TOKENS[:4]), want)


def test_refusals_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="capacity is 0"):
        make_decode_session(folder, capacity=0)
    with pytest.raises(ModelFolderError, match="kv_dtype 'int2'"):
        make_seq_session(folder, capacity=8, kv_dtype="int2")
    with pytest.raises(ModelFolderError):
        make_tree_session(tmp_path, capacity=8)
    session = make_seq_session(folder, capacity=8)
    with pytest.raises(_core.InvalidTensor, match="2 tokens but 1 sequence ids"):
        session.forward([1, 2], [0])
    with pytest.raises(_core.UnknownSequence, match="300"):
        session.forward([1], [300])
