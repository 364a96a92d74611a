"""The row ops check what they are given, when traced as when run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agentkv_runtime.export.mlx.affine import affine_embedding, affine_linear
from agentkv_runtime.export.row_ops import rms_norm, rope, rope_table
from torch._subclasses.fake_tensor import FakeTensorMode

CALLS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[Any, ...]], str]] = {
    "norm-width": (rms_norm, lambda: (torch.zeros(1, 4, 16), torch.ones(64), 1e-6), r"weight \[D\], not \(1, 4, 16\)"),
    "norm-dtype": (rms_norm, lambda: (torch.zeros(4, 8), torch.ones(8).half(), 1e-6), "one dtype"),
    "table-position": (rope_table, lambda: (torch.arange(3)[None], torch.ones(4), 1.0), r"position \[T\] int64"),
    "table-frequencies": (rope_table, lambda: (torch.arange(3), torch.ones(4).half(), 1.0), r"inv_freq \[F\] float32"),
    "rope-rows": (rope, lambda: (torch.zeros(1, 2, 3, 8), torch.zeros(4, 8), False), r"table \[T, 2 F\], not"),
    "rope-width": (rope, lambda: (torch.zeros(1, 2, 3, 8), torch.zeros(3, 16), False), "cannot turn 16 of 8"),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_shapes_that_do_not_fit(name: str, traced: bool) -> None:
    op, arguments, message = CALLS[name]
    if traced:
        with FakeTensorMode(), pytest.raises(RuntimeError, match=message):
            op(*arguments())
    else:
        with pytest.raises(RuntimeError, match=message):
            op(*arguments())


def test_quantised_matrices_whose_parts_do_not_fit() -> None:
    with FakeTensorMode():
        packed = torch.zeros(6, 8, dtype=torch.uint32)  # 6 rows of 64 4-bit codes
        scales, wrong = torch.zeros(6, 2), torch.zeros(6, 1)
        assert affine_linear(torch.zeros(3, 64), packed, scales, scales, None, 32, 4).shape == (3, 6)
        with pytest.raises(RuntimeError, match="rows of 32 meet a matrix whose rows have 64"):
            affine_linear(torch.zeros(3, 32), packed, scales, scales, None, 32, 4)
        with pytest.raises(RuntimeError, match="do not go with scales"):
            affine_embedding(packed, scales, wrong, torch.zeros(3, dtype=torch.int64), 32, 4)
