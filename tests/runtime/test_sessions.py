"""Decode, sequence and tree sessions: three faces of one bookkeeping over one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.sessions import make_decode_session, make_seq_session, make_tree_session

from agentkv.models import nano
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
    drafted = tree.forward(TOKENS[3:], [0] * 5, trees={0: [-1, 0, 1, 2, 3]})
    tree.commit([0, 1, 2, 3, 4])
    assert np.array_equal(np.concatenate([first, drafted]), want)
    assert [len(decode), seq.seq_len(2), tree.seq_len(0)] == [len(TOKENS)] * 3


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
        session.seq_cp(0, sample)
    both = session.forward([7, 9], [1, 2])
    assert session.used == len(TOKENS) + 2
    alone = make_decode_session(folder, capacity=16, kv_dtype="fp32")
    alone.forward(TOKENS, rows=[])
    assert np.array_equal(alone.forward([9]), both[1:])
    session.seq_keep(2)
    assert session.used == len(TOKENS) + 1


def test_a_wrong_branch_of_a_tree_leaves_nothing(folder: Path) -> None:
    session = make_tree_session(folder, capacity=32, kv_dtype="fp32")
    session.forward(TOKENS[:4], [0] * 4, rows=[])
    session.forward([1, TOKENS[4], TOKENS[5]], [0] * 3, trees={0: [-1, -1, 1]})
    session.commit([1, 2])
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


def test_a_failed_forward_of_trees_can_simply_be_repeated(folder: Path) -> None:
    want = make_tree_session(folder, capacity=32, kv_dtype="fp32")
    session = make_tree_session(folder, capacity=32, kv_dtype="fp32")
    for each in (want, session):
        each.forward(TOKENS[:2], [0, 1], rows=[])
    trees = {0: [-1, 0], 1: [-1, -1]}
    seqs, tokens = [0, 0, 1, 1], [5, 6, 7, 8]
    ragged: list[Any] = [5, 6, 7, [8]]
    for bad_tokens, bad_rows in (([5, 6, 7, 999_999], None), (tokens, [9]), ([5, 6, 7, 8.5], None), (ragged, None)):
        with pytest.raises(_core.InvalidTensor):
            session.forward(bad_tokens, seqs, bad_rows, trees)
    with pytest.raises(_core.InvalidTree, match="parent 3"):
        session.forward(tokens, seqs, trees={0: [-1, 0], 1: [-1, 3]})
    with pytest.raises(_core.InvalidStep):
        session.forward(tokens[:1], [0], trees={0: trees[0]})
    with pytest.raises(_core.InvalidTree, match="no rows"):  # and not kept for a later forward
        session.forward(tokens[:2], [0, 0], trees=trees)
    assert np.array_equal(session.forward(tokens, seqs, trees=trees), want.forward(tokens, seqs, trees=trees))
    for each in (want, session):
        each.commit([0, 1], 0)
        each.commit([1], 1)
    assert [session.seq_len(0), session.seq_len(1)] == [3, 2]
    assert np.array_equal(session.forward([9, 9], [0, 1]), want.forward([9, 9], [0, 1]))


def test_a_failure_inside_the_model_leaves_the_session_as_it_was(folder: Path, failing_caches: None) -> None:
    session = make_decode_session(folder, capacity=16, kv_dtype="fp32")
    want = session.forward(TOKENS)
    session.rewind(4)
    _core.fail_at(session._session.cache, 1)
    with pytest.raises(_core.ForwardFailed):
        session.forward(TOKENS[4:])
    assert len(session) == 4
    assert np.array_equal(session.forward(TOKENS[4:]), want[4:])


def test_a_forward_under_way_is_left_alone(folder: Path) -> None:
    session = make_seq_session(folder, capacity=16, kv_dtype="fp32")
    session._session.cache.begin_step([0, 0])
    with pytest.raises(_core.InvalidStep, match="one thread at a time"):
        session.forward([1], [1])
    assert session._session.cache.step_positions().tolist() == [0, 1]
    session._session.cache.abort_step()
    assert session.forward([1], [1]).shape == (1, session.vocab_size)


def test_a_sequence_ends_where_the_model_knows_no_position(folder: Path) -> None:
    most = read_model_folder(folder).manifest.max_positions
    assert most is not None
    session = make_decode_session(folder, capacity=most + 8, kv_dtype="fp32")
    while len(session) < most:
        session.forward([1] * min(session.max_tokens, most - len(session)), rows=[])
    with pytest.raises(_core.PositionsExhausted, match=f"position {most}"):
        session.forward([1])
    assert len(session) == most


def test_refusals_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="capacity is 0"):
        make_decode_session(folder, capacity=0)
    with pytest.raises(ModelFolderError, match="kv_dtype 'int2'"):
        make_seq_session(folder, capacity=8, kv_dtype="int2")
    with pytest.raises(ModelFolderError):
        make_tree_session(tmp_path, capacity=8)
    with pytest.raises(ModelFolderError, match="integers below"):
        make_decode_session(folder, capacity=10**12)
    with pytest.raises(ModelFolderError, match=r"policy 'half'.*full"):
        make_decode_session(folder, capacity=8, policy="half")
    with pytest.raises(_core.InvalidTensor, match="name the rows"):
        make_decode_session(nano(), capacity=256).forward([1] * 65)
    session = make_seq_session(folder, capacity=256)
    with pytest.raises(_core.InvalidTensor, match="2 tokens but 1 sequence ids"):
        session.forward([1, 2], [0])
    with pytest.raises(_core.UnknownSequence, match="300"):
        session.forward([1], [300])
