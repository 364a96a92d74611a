"""ExecuTorch has its own passes again, whatever comes between."""

from __future__ import annotations

import threading

import pytest
from agentkv_runtime.export.retracing import retraced_once
from executorch.exir.program import _program

from tests.waiting import PATIENCE, SOON


def test_what_fails_in_the_block_puts_executorchs_passes_back() -> None:
    before = _program._get_aten_to_edge_passes
    with pytest.raises(RuntimeError), retraced_once():
        raise RuntimeError("the lowering")
    assert _program._get_aten_to_edge_passes is before


def test_threads_that_lower_at_once_put_executorchs_passes_back() -> None:
    before = _program._get_aten_to_edge_passes
    inside, over = threading.Event(), threading.Event()

    def lower() -> None:
        with retraced_once():
            inside.set()
            over.wait(PATIENCE)

    other = threading.Thread(target=lower)
    with retraced_once():
        other.start()
        inside.wait(SOON)  # it would have what this one put there for ExecuTorch's
    over.set()
    other.join(PATIENCE)
    assert _program._get_aten_to_edge_passes is before
