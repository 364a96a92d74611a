"""Our attention as transformers calls it: whose keys and values layers attend to, how far back, what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.hf.attention import (
    Feeding,
    agentkv_attention,
    attends_here,
    current_position,
    feeding,
    layer_sight,
)
from agentkv_runtime.hf.op import active_cache
from agentkv_runtime.hf.own_positions import position_offset, take_positions
from agentkv_runtime.hf.temperature import Temperature
from torch import nn

from tests.runtime.growing_cache import GrowingCache


def config(**fields: Any) -> Any:
    return SimpleNamespace(model_type="tiny", **fields)


def test_layers_that_hand_on_the_same_rows_share_a_layer_of_the_cache() -> None:
    forward = Feeding(torch.arange(2))
    k, v, other = (torch.zeros(1, 1, 2, 8) for _ in range(3))
    assert forward.cache_layer(k, v) == (0, True)
    assert forward.cache_layer(k, other) == (1, True)  # two attentions of one layer
    assert forward.cache_layer(k, v) == (0, False)


@pytest.mark.parametrize(
    ("fields", "handed_on", "sight"),
    [
        ({}, None, (0, 0)),
        ({}, 4, (4, 0)),
        ({"layer_types": ["full_attention"], "sliding_window": 4}, 4, (0, 0)),
        ({"layer_types": ["sliding_attention"], "sliding_window": 4}, None, (4, 0)),
        ({"layer_types": ["chunked_attention"], "attention_chunk_size": 16}, None, (0, 16)),
    ],
)
def test_how_far_back_a_layer_looks(fields: dict[str, Any], handed_on: int | None, sight: tuple[int, int]) -> None:
    assert layer_sight(config(**fields), 0, handed_on) == sight


def test_a_kind_of_layer_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="layer 0 of tiny is 'mamba'"):
        layer_sight(config(layer_types=["mamba"]), 0, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_mask": torch.zeros(1)}, "a mask of its own"),
        ({"dropout": 0.1}, r"dropout 0.1; call model.eval\(\)"),
        ({"is_causal": False}, "attention that is not causal"),
        ({"position_bias": torch.zeros(1)}, "position biases"),
        ({}, "no \\[1, T\\] position_ids"),
    ],
)
def test_what_would_change_attention_is_refused(options: dict[str, Any], message: str) -> None:
    layer: Any = nn.Module()
    layer.config = config()
    rows = torch.zeros(1, 1, 2, 8)
    with pytest.raises(UnsupportedModelError, match=f"tiny attends with {message}"):
        agentkv_attention(layer, rows, rows, rows, **{"attention_mask": None, **options})


def test_layers_are_numbered_as_they_attend() -> None:
    cache = GrowingCache()
    layer: Any = nn.Module()
    layer.config, layer.layer_idx = config(), 5
    with active_cache(cache), feeding(torch.arange(2)) as forward:
        assert attends_here()
        for _ in range(2):
            rows = torch.randn(1, 2, 2, 8)
            agentkv_attention(layer, rows, rows, rows.clone(), None)
    assert set(cache.layers) == {0, 1}
    assert forward.layers == {5}


def test_a_forward_that_only_asks_for_positions_does_not_attend_through_us() -> None:
    with feeding(torch.tensor([4]), attends=False):
        assert not attends_here()
        assert current_position() == torch.tensor([4])
    assert current_position() is None


def test_tables_of_positions_take_those_that_are_announced() -> None:
    class Counting(nn.Embedding):
        offset = 2

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.arange(tokens.shape[1]) + self.offset)

    model: Any = nn.Module()
    model.embed_positions = Counting(10, 4)
    take_positions(model)
    tokens = torch.zeros(1, 3)
    assert torch.equal(model.embed_positions(tokens), model.embed_positions.weight[2:5])
    with feeding(torch.tensor([7, 0, 1])):
        assert torch.equal(model.embed_positions(tokens)[0], model.embed_positions.weight[[9, 2, 3]])
    assert position_offset(model) == 0


def test_queries_grow_with_the_position_that_is_announced() -> None:
    factors = Temperature(8.0, 0.1).of(torch.tensor([0, 6, 7, 15]))
    want = 1 + 0.1 * torch.log(torch.tensor([1.0, 1.0, 2.0, 3.0]))
    torch.testing.assert_close(factors[:, 0], want)
