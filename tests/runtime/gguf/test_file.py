"""GGUF files with their tensors: what is mapped, files in parts, and files that say what is not so.

One more lie is a row of `LIES`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from agentkv_runtime.errors import GGUFError
from agentkv_runtime.gguf.block_types import TYPES
from agentkv_runtime.gguf.file import open_file

BIG = 2**60


def test_block_types_are_those_of_the_package_gguf() -> None:
    known = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: tuple(known_type) for kind, known_type in TYPES.items()} == known


def write(path: Path, tensors: dict[str, np.ndarray], alignment: int | None = None, **keys: int) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        writer.add_uint32(key.replace("_", "."), value)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensors = {"a": numbers(3), "b": numbers(5, 7), "c": numbers(2, 3, 4), "d": numbers(2, 1, 3, 4)}
    write(path, tensors)
    file = open_file(path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.parts == (path,)
    assert list(file.tensors) == list(tensors)
    for name, value in tensors.items():
        tensor = file.tensors[name]
        assert (tensor.name, tensor.type, tensor.shape) == (name, 0, value.shape)
        assert tensor.data.shape == (*value.shape[:-1], value.shape[-1] * 4)
        assert np.array_equal(tensor.data.view(np.float32), value)
        assert not tensor.data.flags.writeable


def test_blocks_of_every_type_have_the_rows_of_the_package_gguf(tmp_path: Path) -> None:
    path, writer = tmp_path / "model.gguf", gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for kind, (_, size) in gguf.GGML_QUANT_SIZES.items():
        writer.add_tensor(kind.name, np.zeros((2, 3 * size), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for kind, (per_block, size) in gguf.GGML_QUANT_SIZES.items():
        tensor = open_file(path).tensors[kind.name]
        assert (tensor.type, tensor.shape, tensor.data.shape) == (kind, (2, 3 * per_block), (2, 3 * size))


def write_parts(place: Path, count: int = 3) -> list[Path]:
    paths = [place / f"model-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        more = {"split_tensors_count": count} if i == 0 else {}
        write(path, {f"t{i}": numbers(i + 1)}, split_no=i, split_count=count, **more)
    return paths


def test_any_part_opens_all(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    for path in paths:
        file = open_file(path)
        assert list(file.tensors) == ["t0", "t1", "t2"]
        assert file.parts == tuple(paths)
        assert file.metadata["split.no"] == 0


def test_parts_that_are_missing_or_others_are_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    whole = paths[1].read_bytes()
    paths[1].unlink()
    with pytest.raises(GGUFError, match=r"one of 3 parts, and model-00002-of-00003\.gguf does not lie beside it"):
        open_file(paths[2])
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(GGUFError, match=r"model-00002-of-00003\.gguf: is not part 2 of 3, as it is called"):
        open_file(paths[0])
    paths[1].write_bytes(whole.replace(b"t1", b"t0"))
    with pytest.raises(GGUFError, match="3 parts hold 3 tensors of 2 names, and must hold 3"):
        open_file(paths[0])
    (tmp_path / "renamed.gguf").write_bytes(whole)
    with pytest.raises(GGUFError, match="one of 3 parts, which are found by their names"):
        open_file(tmp_path / "renamed.gguf")


LIES: list[tuple[str, Callable[[bytearray, int], None], str]] = [
    # What is done to the entry of the tensor "lie": `at` is where its name begins.
    ("a name of 2^60 bytes", lambda data, at: put(data, at - 8, "Q", BIG), "needs 1152921504606846976 more bytes"),
    ("no dimensions", lambda data, at: put(data, at + 3, "I", 0), "lie has 0 dimensions, and must have 1 to 4"),
    ("5 dimensions", lambda data, at: put(data, at + 3, "I", 5), "lie has 5 dimensions"),
    ("2^32 - 1 dimensions", lambda data, at: put(data, at + 3, "I", 2**32 - 1), "dimensions, and must have"),
    (
        "a dimension of 0",
        lambda data, at: put(data, at + 7, "Q", 0),
        r"lie has the shape \[32, 0\], without any number",
    ),
    ("rows of 2^60", lambda data, at: put(data, at + 7, "Q", BIG), "lie has .* bytes from 32 on, and 4160 are there"),
    ("2^60 rows", lambda data, at: put(data, at + 15, "Q", BIG), "lie has .* bytes from 32 on"),
    ("an overflowing product", lambda data, at: put(data, at + 7, "QQ", 2**32, 2**32), "lie has .* bytes from 32 on"),
    ("an unknown type", lambda data, at: put(data, at + 23, "I", 4), "lie is of type 4, which is not known"),
    ("another type", lambda data, at: put(data, at + 23, "I", 12), "lie is Q4_K with rows of 32 numbers, which are no"),
    ("an offset of 2^60", lambda data, at: put(data, at + 27, "Q", BIG), "lie has 4096 bytes from 11529"),
    ("an unaligned offset", lambda data, at: put(data, at + 27, "Q", 33), "lie begins at 33, which is not a multiple"),
    ("bytes of another", lambda data, at: put(data, at + 27, "Q", 0), "lie in the same bytes"),
    ("a name of two lines", lambda data, at: put(data, at, "B", 10), "tensor 2 of 3 has a name that is none"),
    ("a name that is there", lambda data, at: data.__setitem__(slice(at, at + 3), b"yes"), "yes is there twice"),
    ("2^60 tensors", lambda data, _: put(data, 8, "Q", BIG), "cut or damaged"),
    ("2^60 keys", lambda data, _: put(data, 16, "Q", BIG), "key .* of 1152921504606846976"),
]


def put(data: bytearray, at: int, kind: str, *values: int) -> None:
    struct.pack_into(f"<{kind}", data, at, *values)


@pytest.mark.parametrize(("what", "lie", "said"), LIES, ids=[row[0] for row in LIES])
def test_what_is_not_so_is_said(tmp_path: Path, what: str, lie: Callable[[bytearray, int], None], said: str) -> None:
    path = tmp_path / "model.gguf"
    write(path, {"yes": numbers(8), "lie": numbers(32, 32), "end": numbers(8)})
    data = bytearray(path.read_bytes())
    lie(data, data.index(b"lie"))
    path.write_bytes(data)
    with pytest.raises(GGUFError, match=said) as refused:
        open_file(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(("value", "said"), [(0, "is 0, and must be a power of two"), (48, "is 48, and must be")])
def test_alignments_are_powers_of_two(tmp_path: Path, value: int, said: str) -> None:
    write(tmp_path / "model.gguf", {"a": numbers(3)}, alignment=64)
    data = bytearray((tmp_path / "model.gguf").read_bytes())
    assert open_file(tmp_path / "model.gguf").tensors["a"].data.nbytes == 12
    put(data, data.index(b"general.alignment") + len("general.alignment") + 4, "I", value)
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(GGUFError, match=said):
        open_file(tmp_path / "model.gguf")
