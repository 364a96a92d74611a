"""Names of files in parts. One more is a row of `NAMES`: a file, how many parts there are, and a pattern of them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from agentkv_runtime.gguf.parts import part_paths, parts_pattern

NAMES = [
    ("model.gguf", 1, "model.gguf"),
    ("m-00002-of-00003.gguf", 3, "m-?????-of-00003.gguf"),
    ("Q4/m-00001-of-00001.GGUF", 1, "Q4/m-?????-of-00001.GGUF"),
    ("m-00000-of-00003.gguf", 1, "m-?????-of-00003.gguf"),
    ("m-00004-of-00003.gguf", 1, "m-?????-of-00003.gguf"),
    ("m-1-of-3.gguf", 1, "m-1-of-3.gguf"),
    ("m-00001-of-00003.safetensors", 1, "m-00001-of-00003.safetensors"),
]


@pytest.mark.parametrize(("name", "count", "pattern"), NAMES)
def test_parts_are_found_by_their_names(name: str, count: int, pattern: str) -> None:
    paths = part_paths(Path(name))
    assert len(paths) == len(set(paths)) == count
    assert Path(name) in paths
    assert parts_pattern(name) == pattern
    assert all(fnmatchcase(str(path), pattern) for path in paths)
