"""Programs are what ExecuTorch's own passes make of them, and it has those again, whatever comes between."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from agentkv_runtime.export.retracing import retraced_once
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.program import _program
from torch._export import utils
from torch.export import export

from tests.waiting import PATIENCE, SOON


class _EmptyParts(torch.nn.Module):
    """A concatenation that has another dtype once its empty part is dropped."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.int(), x[:, :0]], 1) * x.int()


class _Mixed(torch.nn.Module):
    """Calls that one of the passes changes each, and some that two change."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = torch.where(x > 0, 2 * x.t().int().t(), x.shape[0])
        return torch.div(scaled, 2, rounding_mode="floor") + torch.minimum(x, scaled) * x.shape[0]


@pytest.mark.parametrize("module", [_EmptyParts(), _Mixed()], ids=lambda module: type(module).__name__)
def test_the_program_is_that_of_executorchs_own_passes(module: torch.nn.Module) -> None:
    rows = {0: torch.export.Dim("rows", min=2, max=8)}

    def lowered(passes: AbstractContextManager[None]) -> bytes:
        traced = export(module, (torch.ones(4, 4),), dynamic_shapes=(rows,))
        config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
        with passes:
            return bytes(to_edge_transform_and_lower(traced, compile_config=config).to_executorch().buffer)

    assert lowered(retraced_once()) == lowered(nullcontext())


def test_what_fails_in_the_block_puts_executorchs_passes_back() -> None:
    before = _program._get_aten_to_edge_passes, utils._materialize_cpp_cia_ops
    with pytest.raises(RuntimeError), retraced_once():
        raise RuntimeError("the lowering")
    assert (_program._get_aten_to_edge_passes, utils._materialize_cpp_cia_ops) == before


def test_torch_lists_its_composite_ops_once(monkeypatch: pytest.MonkeyPatch) -> None:
    list_ops, listed = utils._materialize_cpp_cia_ops, list[None]()
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", lambda: listed.append(list_ops()))
    traced = export(_Mixed(), (torch.ones(4, 4),))
    with retraced_once():
        traced.run_decompositions()
        traced.run_decompositions()
    assert len(listed) == 1


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
