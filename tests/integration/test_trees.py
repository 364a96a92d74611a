"""Draft trees of several branches in one forward: each node has the bits of a plain branch over its path."""

from __future__ import annotations

import pytest
from agentkv_runtime import _core

from tests.conformance.configs import CONFIGS
from tests.conformance.trees import trees_against_branches
from tests.conftest import FolderFactory
from tests.driver import Driver, native_driver


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8", "int8/int4", "int4"])
@pytest.mark.parametrize("name", ["llama-gqa2-d64", "mistral-gqa8-d80-w8"])
def test_nodes_have_the_bits_of_plain_branches(tiny_exported_folder: FolderFactory, name: str, kv_dtype: str) -> None:
    kind, fields = CONFIGS[name]
    program = _core.ExecuTorchProgram(str(tiny_exported_folder(kind, **fields) / "model.pte"))
    session = program.make_session(capacity=512, kv_dtype=kv_dtype, min_chunk=16)
    plain = native_driver(program, capacity=1024, kv_dtype=kv_dtype)
    found = trees_against_branches(Driver(session, session.cache), plain)
    print(f"\n{name} {kv_dtype}: {found}")
    assert found.differing == 0
    assert found.accepted > 10
