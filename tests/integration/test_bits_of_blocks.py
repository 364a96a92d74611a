"""Determinism, DESIGN section 8, of models whose weights are blocks: every type of block, however rows are fed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime.export import export_folder
from gguf import GGMLQuantizationType as Q

from tests.blocks import TYPES
from tests.driver import Logits, native_driver
from tests.models import tiny_model, tiny_spec
from tests.runtime.sources.gguf_files import write_gguf

SHAPE: dict[str, Any] = {"hidden": 256, "intermediate": 512, "head_dim": 64, "layers": 2}
TOKENS = [(11 * i) % 300 + 3 for i in range(130)]
BRANCHES = 9


@pytest.fixture(scope="module", params=TYPES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    threads, place = _core.get_threads(), tmp_path_factory.mktemp(request.param)
    write_gguf(place / "model.gguf", tiny_model(tiny_spec("qwen3", **SHAPE)), "qwen3", Q[request.param.upper()])
    folder = export_folder(place / "model.gguf", place / "out", max_tokens=64, max_logits=64)
    assert set(folder.manifest.weight_types.values()) == {request.param}
    yield _core.ExecuTorchProgram(str(Path(folder.path) / "model.pte"))
    _core.set_threads(threads)


def alone(program: Any, tokens: list[int]) -> Logits:
    """Token by token, on one thread."""
    _core.set_threads(1)
    rows = native_driver(program).feed(0, tokens, (1,) * (len(tokens) - 1))
    assert np.isfinite(rows).all()
    return rows


def test_rows_have_the_same_bits_in_any_chunks_and_on_any_threads(program: Any) -> None:
    want = alone(program, TOKENS)
    rng = random.Random(3)
    for threads in (1, 2):
        _core.set_threads(threads)
        for chunks in ((64, 64), (2, 3, 5, 7, 11, 13, 17, 33), [rng.randrange(1, 24) for _ in range(11)]):
            assert np.array_equal(native_driver(program).feed(0, TOKENS, chunks).view(np.uint32), want.view(np.uint32))


def test_branches_have_the_same_bits_together_as_alone(program: Any) -> None:
    trunk = TOKENS[:40]
    tails = [[(7 * i + 3 * b) % 300 + 3 for i in range(12)] for b in range(BRANCHES)]
    want = [alone(program, trunk + tail)[-len(tail) :] for tail in tails]
    for threads in (1, 2):
        _core.set_threads(threads)
        driver = native_driver(program, capacity=512)
        driver.feed(0, trunk)
        for b in range(1, BRANCHES):
            driver.fork(0, b)
        for i in range(12):
            got = driver.advance({b: [tails[b][i]] for b in range(BRANCHES)}, random.Random(i))
            for b in range(BRANCHES):
                assert np.array_equal(got[b][-1].view(np.uint32), want[b][i].view(np.uint32))
