"""Attention that picks tokens by an index, as far as it picks all of them."""

from __future__ import annotations

import pytest
import torch
from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.hf.attention import AllInSight, agentkv_attention, feeding
from agentkv_runtime.hf.check import check_in_chunks, reference_logits
from agentkv_runtime.hf.deferred import present
from agentkv_runtime.hf.positions import position_limit
from agentkv_runtime.hf.prepare import prepare

from tests.architectures.outcome import random_model
from tests.architectures.tiny_configs import tiny_config


@torch.no_grad()
def test_a_model_says_the_same_and_ends_where_it_would_pick() -> None:
    config = tiny_config("deepseek_v32")
    config.index_topk = 40
    model = random_model(config)
    tokens = torch.arange(3, 30)[None]
    want = model(input_ids=tokens, use_cache=False).logits
    prepare(model)
    with present(model):
        assert torch.equal(model(input_ids=tokens, use_cache=False).logits, want)  # by itself it picks as before
        check_in_chunks(model, reference_logits(model))
    assert position_limit(model.config) == 40


@torch.no_grad()
def test_one_that_picks_some_is_told_from_it() -> None:
    config = tiny_config("deepseek_v32")
    config.index_topk = 2
    model = random_model(config)
    prepare(model)
    with present(model), pytest.raises(UnsupportedModelError, match=r"differ by \d"):
        check_in_chunks(model, reference_logits(model))


def test_a_mask_that_hides_nothing_is_none() -> None:
    assert isinstance(AllInSight()[:, 0, :, :], AllInSight)
    layer, heads = torch.nn.Module(), torch.zeros(1, 1, 2, 8)
    with feeding(torch.arange(2)), pytest.raises(UnsupportedModelError, match="a mask of its own"):
        agentkv_attention(layer, heads, heads, heads, torch.zeros(2, 2))
