"""The heads that the nano model starts with copy what followed the same token, before any training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from examples.nano import model as nano  # noqa: E402
from examples.nano import tokenizer  # noqa: E402


@pytest.fixture(scope="module")
def model():
    return nano.build(tokenizer.build(size=50), seed=0)


def test_repeated_tokens_are_predicted_without_training(model) -> None:
    tokens = torch.randint(0, 1024, (8, 12), generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    with torch.no_grad():
        guesses = model(tokens).logits[:, 12:-1].argmax(-1)
    assert (guesses == tokens[:, 13:]).float().mean() > 0.8


def test_grouped_attention_is_causal_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 300, 64, generator=generator) for heads in (4, 2, 2))
    mixed, _ = nano.grouped_attention(torch.nn.Identity(), query, key, value, None, 0.125)
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(mixed, plain.transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_int4_rounding_keeps_sixteen_values_a_group() -> None:
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    rounded = nano.int4(weight)
    assert rounded.shape == weight.shape
    assert all(len(group.unique()) <= 16 for group in rounded.reshape(-1, nano.INT4_GROUP))
    assert (rounded - weight).abs().max() < weight.abs().max() / 7


def test_rounding_leaves_the_parameters_as_they_were() -> None:
    parameter = torch.nn.Parameter(torch.randn(2, 32, generator=torch.Generator().manual_seed(0)))
    before = parameter.detach().clone()
    with nano.rounded([parameter]):
        assert not torch.equal(parameter, before)
    assert torch.equal(parameter, before)
