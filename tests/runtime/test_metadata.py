"""Constant methods of a program: what is written is read back, and nothing else is accepted."""

from __future__ import annotations

from typing import Any

import pytest
from agentkv_runtime.errors import UnknownSchemaError
from agentkv_runtime.folder.metadata import (
    Kept,
    KvCacheMetadata,
    LayerShape,
    read_kv_cache_metadata,
    write_kv_cache_metadata,
)

SHAPE = {"n_layers": 2, "n_kv_heads": 3, "head_dim": 16}


@pytest.mark.parametrize("windows", [(), (0, 8), (128, 128)])
def test_what_is_written_is_read_back(windows: tuple[int, ...]) -> None:
    constants = write_kv_cache_metadata(**SHAPE, windows=windows)
    assert read_kv_cache_metadata(constants) == KvCacheMetadata(**SHAPE, windows=windows)


def test_windows_that_bound_nothing_are_left_out() -> None:
    assert "kv_cache.windows" not in write_kv_cache_metadata(**SHAPE, windows=[0, 0])


def test_only_facts_of_the_architecture_are_written() -> None:
    constants = write_kv_cache_metadata(**SHAPE)
    assert set(constants) == {"kv_cache.schema_version", *(f"kv_cache.{name}" for name in SHAPE)}


@pytest.mark.parametrize("bad", [{"n_layers": 0}, {"head_dim": -1}, {"windows": [1, -1]}, {"windows": [8]}])
def test_impossible_facts_are_not_written(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        write_kv_cache_metadata(**{**SHAPE, **bad})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_cache.schema_version": 4}, "version 4; this runtime reads 1 to 3"),
        ({"kv_cache.schema_version": 3, "kv_cache.shapes": [1, 8, 8, 9, 1] * 2}, "something that no layer keeps"),
        ({"kv_cache.schema_version": None}, "did not export"),
        ({"kv_cache.n_layers": None}, "n_layers"),
        ({"kv_cache.head_dim": "16"}, "head_dim"),
        ({"kv_cache.n_kv_heads": 0}, "n_kv_heads"),
        ({"kv_cache.windows": [1]}, "1 windows for 2 layers"),
        ({"kv_cache.windows": [1, "x"]}, "windows"),
        ({"kv_cache.schema_version": 2}, "0 numbers of shapes for 2 layers"),
        ({"kv_cache.schema_version": 2, "kv_cache.shapes": [1, 8, 8]}, "3 numbers of shapes"),
        ({"kv_cache.schema_version": 2, "kv_cache.shapes": [1, 8, 8, -1] * 2}, "shapes must be integers"),
    ],
)
def test_what_cannot_be_understood_is_refused(change: dict[str, Any], message: str) -> None:
    constants: dict[str, Any] = {**write_kv_cache_metadata(**SHAPE), **change}
    constants = {name: value for name, value in constants.items() if value is not None}
    with pytest.raises(UnknownSchemaError, match=message):
        read_kv_cache_metadata(constants)


def test_layers_of_different_shapes_are_read_back() -> None:
    shapes = [LayerShape(2, 16, 16), LayerShape(1, 512, 256)]
    metadata = KvCacheMetadata.of_layers(shapes, [8, 0])
    assert metadata == KvCacheMetadata(2, 1, 512, (8, 0), tuple(shapes))
    constants = write_kv_cache_metadata(n_layers=2, n_kv_heads=1, head_dim=512, windows=(8, 0), shapes=shapes)
    assert constants["kv_cache.schema_version"] == metadata.schema_version == 2
    assert read_kv_cache_metadata(constants) == metadata
    assert metadata.kv_bytes_per_token("fp16") == 2 * (2 * 16 * 2 + 512 + 256)


def test_layers_of_one_shape_need_no_list_of_shapes() -> None:
    metadata = KvCacheMetadata.of_layers([LayerShape(3, 16, 16)] * 2, [0, 0])
    assert metadata == KvCacheMetadata(**SHAPE)
    assert metadata.schema_version == 1


def test_a_latent_is_kept_once() -> None:
    metadata = KvCacheMetadata.of_layers([LayerShape(1, 576, 512, Kept.LATENT)] * 2, [0, 0])
    assert metadata.kv_bytes_per_token("fp16") == 2 * 576 * 2
    with pytest.raises(ValueError, match="values are a part of their keys"):
        metadata.kv_bytes_per_token("int8")


def test_bytes_per_token() -> None:
    metadata = KvCacheMetadata(**SHAPE)
    assert metadata.kv_bytes_per_token("fp32") == 2 * 2 * 3 * 16 * 4
    assert metadata.kv_bytes_per_token("bf16") == metadata.kv_bytes_per_token("fp16") == 2 * 2 * 3 * 16 * 2
    for dtype in ("fp64", "int4/int8", "fp16/int4", "int8/"):
        with pytest.raises(ValueError, match=f"one of fp32.*int8/int4.*not '{dtype}'"):
            metadata.kv_bytes_per_token(dtype)
    assert metadata.kv_bytes_per_token("int8") == metadata.kv_bytes_per_token("int8", "torch") == 2 * 2 * 3 * (16 + 4)
    assert metadata.kv_bytes_per_token("int4") == 2 * 2 * 3 * (16 + 4)  # 32 numbers in 16 bytes
    assert KvCacheMetadata(1, 1, 128).kv_bytes_per_token("int4") == 2 * (64 + 4)
    assert KvCacheMetadata(1, 1, 128).kv_bytes_per_token("int8/int4") == (128 + 4) + (64 + 4)
    assert KvCacheMetadata(1, 1, 128).kv_bytes_per_token("int8", "mlx") == 2 * (128 + 2 * 4)
    with pytest.raises(ValueError, match="head_dim that 32 divides on MLX, not 16"):
        metadata.kv_bytes_per_token("int8", "mlx")


def test_states_and_inputs_are_kept_for_few_tokens() -> None:
    shapes = [LayerShape(4, 16, 32, Kept.LINEAR), LayerShape(1, 96, 96, Kept.INPUTS), LayerShape(2, 16, 16)]
    metadata = KvCacheMetadata.of_layers(shapes, [65, 4, 0])
    assert metadata.schema_version == 3
    assert read_kv_cache_metadata(write_kv_cache_metadata(**vars(metadata))) == metadata
    assert metadata.kv_bytes_per_token("int8") == 2 * 2 * (16 + 4)
    assert [shape.state_bytes for shape in shapes] == [4 * 4 * 16 * 32, 0, 0]
