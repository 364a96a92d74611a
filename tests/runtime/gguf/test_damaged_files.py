"""Random files that are cut, damaged or lie: each is read, or refused in words, and nothing large is made of it."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from agentkv_runtime.errors import GGUFError, UnsupportedModelError
from agentkv_runtime.gguf.architectures import describe
from agentkv_runtime.gguf.file import open_file
from agentkv_runtime.gguf.metadata import Cursor, read_pairs

from tests.runtime.gguf.rows import ARCHITECTURES
from tests.runtime.gguf.tiny_files import tiny_model, write_file

KINDS = ("llama-llama3", "gemma3", "phi3-long", "gpt-oss", "falcon-40b", "stablelm-12b", "apertus")
NUMBERS = (0, 1, 2, 3, 31, 255, 2**16, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)
MOST = 64 * 2**20
"""Bytes that reading a file of 200 kB may take."""

Damage = Callable[[bytearray, list[int], random.Random], None]


def cut(data: bytearray, _: list[int], rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def lie(data: bytearray, fields: list[int], rng: random.Random) -> None:
    """A count, length, dimension, type or offset is another."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, size = rng.choice(fields), rng.choice((1, 2, 4, 8))
        data[at : at + size] = (rng.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")


def flip(data: bytearray, fields: list[int], rng: random.Random) -> None:
    for _ in range(rng.choice((1, 3, 20))):
        data[rng.randrange(fields[-1] + 8)] = rng.randrange(256)


def move(data: bytearray, fields: list[int], rng: random.Random) -> None:
    """Some bytes are put in, left out, or are those of another place."""
    at, other = rng.randrange(fields[-1]), rng.randrange(fields[-1])
    data[at : at + rng.choice((0, 4, 8, 64))] = data[other : other + rng.choice((0, 4, 8, 64))]


DAMAGES: tuple[Damage, ...] = (cut, lie, lie, lie, flip, move)


class Fields(Cursor):
    """Notes where numbers are."""

    def _advance(self, count: int) -> int:
        self.__dict__.setdefault("found", []).append(self.at)
        return super()._advance(count)


def fields_of(path: Path, data: bytes) -> list[int]:
    """Where a file has its counts, lengths, dimensions, types and offsets."""
    cursor = Fields(path, data)
    _, tensors = read_pairs(cursor)
    for _ in range(tensors):
        cursor.string()
        cursor.numbers("Q", cursor.u32())
        cursor.u32()
        cursor.u64()
    found: list[int] = cursor.__dict__["found"]
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, list[int]]]:
    place = tmp_path_factory.mktemp("whole")
    written = []
    for kind in KINDS:
        path, row = place / f"{kind}.gguf", ARCHITECTURES[kind]
        write_file(path, row, tiny_model(row), gguf.GGMLQuantizationType.Q8_0)
        data = path.read_bytes()
        written.append((data, fields_of(path, data)))
    return written


def refusal(path: Path) -> str | None:
    """Why a file is not read; None where all of it is."""
    try:
        weights = describe(open_file(path)).weights()
        for name in weights.names():
            weights.floats(name)
            if (blocks := weights.blocks(name)) is not None:
                assert blocks.rows().shape == (*blocks.shape[:-1], blocks.row_bytes)
    except (GGUFError, UnsupportedModelError) as error:
        return str(error)
    return None


def check_damaged(files: list[tuple[bytes, list[int]]], path: Path, count: int, seed: int) -> None:
    rng, whole = random.Random(seed), 0
    tracemalloc.start()
    try:
        for i in range(count):
            original, fields = rng.choice(files)
            data = bytearray(original)
            rng.choice(DAMAGES)(data, fields, rng)
            path.write_bytes(data)
            tracemalloc.reset_peak()
            try:
                why = refusal(path)
            except Exception as error:
                raise AssertionError(f"case {i} of seed {seed}: {error!r}") from error
            assert why is None or str(path) in why or "cannot be dequantised" in why
            whole += why is None
            assert tracemalloc.get_traced_memory()[1] < MOST, f"case {i} of seed {seed}"
    finally:
        tracemalloc.stop()
    print(f"{count} damaged files: {whole} read, {count - whole} refused")
    assert whole < count / 2


def test_damaged_files_are_refused_in_words(files: list[tuple[bytes, list[int]]], tmp_path: Path) -> None:
    for original, _ in files:
        (tmp_path / "whole.gguf").write_bytes(original)
        assert refusal(tmp_path / "whole.gguf") is None
    check_damaged(files, tmp_path / "damaged.gguf", count=300, seed=1)


@pytest.mark.soak
def test_many_damaged_files(files: list[tuple[bytes, list[int]]], tmp_path: Path) -> None:
    check_damaged(files, tmp_path / "damaged.gguf", count=5000, seed=2)
