"""4-bit weights: their format, and the error that the choice of scales leaves."""

from __future__ import annotations

import pytest
import torch
from agentkv_runtime.export.cpu.scales import Quantized, quantized_weight
from agentkv_runtime.folder.manifest import Scales


def weight(outputs: int = 48, inputs: int = 128, seed: int = 0) -> torch.Tensor:
    """Normal numbers, and an outlier in every third row."""
    w = torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(seed))
    w[::3, 5] *= 4
    return w


def seen_by_the_kernel(q: Quantized, group: int) -> torch.Tensor:
    """Groups' scales are bfloat16 in XNNPACK."""
    scales = q.scales.to(torch.bfloat16).float().repeat_interleave(group, dim=1)
    return q.codes.float() * scales


@pytest.mark.parametrize("scales", ["largest", "search"])
def test_codes_and_scales_are_what_the_kernels_take(scales: Scales) -> None:
    q = quantized_weight(weight(), 4, 32, scales)
    assert q.codes.dtype == torch.int8
    assert q.codes.min() >= -8
    assert q.codes.max() <= 7
    assert q.scales.shape == (48, 4)
    assert (q.scales > 0).all()


def test_search_leaves_less_error_in_every_row() -> None:
    w = weight()
    lost = {}
    for scales in ("largest", "search"):
        q = quantized_weight(w, 4, 32, scales)
        difference = seen_by_the_kernel(q, 32) - w
        lost[scales] = difference.view(48, 4, 32).square().sum(-1)
        assert q.error == pytest.approx(float(difference.norm() / w.norm()), rel=0.02)
    assert (lost["search"] <= lost["largest"] * 1.01).all()
    assert lost["search"].sum() < 0.9 * lost["largest"].sum()


@pytest.mark.parametrize("scales", ["largest", "search"])
def test_groups_of_one_value_and_of_nothing(scales: Scales) -> None:
    w = torch.zeros(4, 64)
    w[1], w[2, :32], w[3] = 0.5, -3.0, 1e-38
    q = quantized_weight(w, 4, 32, scales)
    assert torch.isfinite(q.scales).all()
    assert (q.scales > 0).all()
    # The largest code is 7, but the scale is made for 7.5.
    assert (seen_by_the_kernel(q, 32) - w)[:3].abs().max() < (0.25 if scales == "largest" else 0.02)


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 128)])
def test_blocks_of_rows_change_nothing(bits: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w = weight().to(torch.bfloat16)
    whole = quantized_weight(w, bits, group, "search")
    monkeypatch.setattr("agentkv_runtime.export.cpu.scales._BLOCK", 5 * 128)
    parts = quantized_weight(w, bits, group, "search")
    assert torch.equal(whole.codes, parts.codes)
    assert torch.equal(whole.scales, parts.scales)


def test_round_to_nearest_is_torchao_s_own() -> None:
    from torchao.quantization import IntxUnpackedToInt8Tensor

    w = weight()
    theirs = IntxUnpackedToInt8Tensor.from_hp(w, (1, 32), torch.int4)  # type: ignore[attr-defined, arg-type]
    ours = quantized_weight(w, 4, 32, "largest")
    assert torch.equal(ours.codes, theirs.qdata)
    assert torch.equal(ours.scales, theirs.scale)
