"""Latent attention: absorbed products are those of the expanded keys, and by itself a layer computes what it did."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.hf.latent import LatentProjection, is_start
from torch import nn

HEADS, KEY, VALUE, RANK, TURNED, ROWS = 3, 8, 6, 16, 4, 5


@pytest.fixture
def parts() -> SimpleNamespace:
    torch.manual_seed(0)
    linear = nn.Linear(RANK, HEADS * (KEY + VALUE), bias=False).requires_grad_(False)
    projection = LatentProjection(linear, KEY, VALUE)
    load_all(projection)
    latent, rotated = torch.randn(1, 1, ROWS, RANK), torch.randn(1, 1, ROWS, TURNED)
    return SimpleNamespace(linear=linear, projection=projection, latent=latent, rotated=rotated)


def expanded(parts: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    rows = parts.linear(parts.latent[0, 0]).view(ROWS, HEADS, KEY + VALUE).transpose(0, 1)[None]
    keys, values = rows.split((KEY, VALUE), dim=-1)
    return torch.cat((keys, parts.rotated.expand(-1, HEADS, -1, -1)), dim=-1), values


def test_products_with_latents_are_those_with_keys(parts: SimpleNamespace) -> None:
    keys, _ = expanded(parts)
    query = torch.randn(1, HEADS, 2, KEY + TURNED)
    row = torch.cat((parts.latent, parts.rotated), dim=-1)
    got = parts.projection.absorbed(query) @ row.transpose(2, 3)
    torch.testing.assert_close(got, query @ keys.transpose(2, 3))


def test_weighted_latents_become_weighted_values(parts: SimpleNamespace) -> None:
    _, values = expanded(parts)
    weights = torch.rand(1, HEADS, 2, ROWS)
    got = parts.projection.from_latent(weights @ parts.latent.expand(-1, HEADS, -1, -1))
    torch.testing.assert_close(got, weights @ values)


def test_by_itself_a_layer_gets_keys_and_values_of_all_heads(parts: SimpleNamespace) -> None:
    for got, want in zip(parts.projection.expand(parts.latent, parts.rotated), expanded(parts), strict=True):
        torch.testing.assert_close(got, want)


def test_the_start_of_keys_is_known_from_other_values() -> None:
    keys = torch.zeros(1, 1, 4, 8)
    assert is_start(keys[..., :6], keys)
    assert not is_start(keys[..., 2:], keys)
    assert not is_start(keys, keys)
    assert not is_start(keys[..., :6].clone(), keys)
