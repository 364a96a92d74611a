"""Weights as blocks: the rows of every architecture's matrices are those of its parameters, and which have none."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.gguf.architectures import describe
from agentkv_runtime.gguf.block_types import TYPES
from agentkv_runtime.gguf.file import Tensor, open_file
from agentkv_runtime.gguf.weights import Parameter, numbers_of
from gguf import GGMLQuantizationType as Q

from tests.runtime.gguf.rows import ARCHITECTURES
from tests.runtime.gguf.tiny_files import tiny_model, write_file


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_of_blocks_are_those_of_the_parameter(name: str, tmp_path: Path) -> None:
    row, path = ARCHITECTURES[name], tmp_path / "model.gguf"
    write_file(path, row, tiny_model(row), Q.Q8_0)
    weights, types = describe(open_file(path)).weights(), []
    for parameter in weights.names():
        value, blocks = weights.floats(parameter), weights.blocks(parameter)
        if blocks is None:
            assert value.ndim < 2 or parameter.endswith("_bias")
            continue
        rows = blocks.rows()
        assert rows.shape == (*blocks.shape[:-1], blocks.row_bytes)
        dequantized = gguf.dequantize(rows, Q(blocks.type)).reshape(blocks.shape)
        transposed = dequantized.shape != value.shape or not np.array_equal(dequantized, value)
        assert np.array_equal(dequantized.swapaxes(-1, -2) if transposed else dequantized, value), parameter
        assert transposed == (row.name in ("gpt2", "gpt-oss") and ("experts" in parameter or ".h." in parameter))
        types.append(blocks.type)
    assert len(types) >= 9
    assert set(types) <= {Q.Q8_0, Q.F32}


def tensor(shape: tuple[int, ...], kind: Q = Q.F32, seed: int = 0) -> Tensor:
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return Tensor("t", int(kind), shape, gguf.quantize(numbers, kind).view(np.uint8))


def test_what_is_joined_of_several_types_or_changed_has_no_blocks() -> None:
    one, other = tensor((2, 32), Q.Q8_0), tensor((3, 32), Q.F16, seed=1)
    joined = Parameter((one, other))
    assert joined.blocks() is None
    assert np.array_equal(joined.numbers(), np.concatenate([numbers_of(one), numbers_of(other)]))
    assert Parameter((one,), added=1.0).blocks() is None
    assert Parameter((tensor((32,)),), axis=-1).blocks() is None


def test_a_vector_may_be_a_matrix_of_one_row() -> None:
    vector = tensor((32,))
    blocks = Parameter((vector,), axis=-1, shape=(1, 32)).blocks()
    assert blocks is not None
    assert (blocks.shape, blocks.rows().shape, blocks.row_bytes) == ((1, 32), (1, 128), 128)


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q8_0, Q.MXFP4])
def test_numbers_are_those_of_the_package_gguf(kind: Q) -> None:
    stored = tensor((4, 64), kind)
    assert np.array_equal(numbers_of(stored), gguf.dequantize(stored.data, kind).reshape(4, 64))


def test_blocks_that_nothing_dequantises_are_refused_by_name() -> None:
    stored = Tensor("blk.0.ffn_up.weight", 15, (1, 256), np.zeros((1, TYPES[15].bytes), np.uint8))
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.ffn_up\.weight is Q8_K, which cannot be dequantised"):
        numbers_of(stored)
