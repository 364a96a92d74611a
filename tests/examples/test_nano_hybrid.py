"""The hybrid starts with nano's layers, its fast layers compute what transformers' do, and training moves it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import LlamaForCausalLM  # noqa: E402
from transformers.models.bamba import modeling_bamba  # noqa: E402

from examples.nano import hybrid, train_hybrid  # noqa: E402
from examples.nano import tokenizer as bpe  # noqa: E402
from examples.nano.train import Trainer  # noqa: E402


@pytest.fixture(autouse=True)
def others_find_transformers_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `use_fast_layers` replaces is put back."""
    torch.set_num_threads(1)
    for name in ("mamba2_chunk_scan", "causal_conv1d_fn"):
        monkeypatch.setattr(modeling_bamba, name, getattr(modeling_bamba, name))


def test_half_of_the_layers_attend_and_are_nanos() -> None:
    model = hybrid.build(bpe.load())
    hybrid.graft(model, train_hybrid.WEIGHTS)
    nano = LlamaForCausalLM.from_pretrained(train_hybrid.WEIGHTS, dtype=torch.float32)
    assert model.config.layer_types == ["full_attention"] * 2 + ["linear_attention"] * 2
    assert torch.equal(model.lm_head.weight, nano.lm_head.weight)
    for mine, theirs in zip(model.model.layers, nano.model.layers, strict=True):
        assert torch.equal(mine.feed_forward.down_proj.weight, theirs.mlp.down_proj.weight)
    for mine, theirs in zip(model.model.layers[:2], nano.model.layers[:2], strict=True):
        assert torch.equal(mine.self_attn.o_proj.weight, theirs.self_attn.o_proj.weight)


def test_fast_layers_compute_what_transformers_do() -> None:
    model = hybrid.build(bpe.load())
    tokens = torch.randint(3, 1024, (2, 150), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model(tokens, use_cache=False).logits
        hybrid.use_fast_layers()
        assert modeling_bamba.mamba2_chunk_scan is hybrid.scan
        torch.testing.assert_close(model(tokens, use_cache=False).logits, wanted, atol=1e-5, rtol=1e-4)


def test_what_it_starts_with_helps_and_a_few_updates_lower_the_loss() -> None:
    trainer: Trainer = train_hybrid.trainer(budget=512, lr=5e-4)
    held_out = trainer.batches.take(0.0)
    with torch.no_grad():
        before = trainer.loss(held_out, 0.2)[1]
    assert before < 2  # random weights: 6.9
    for _ in range(8):
        trainer.train_step(0.05)
    with torch.no_grad():
        assert trainer.loss(held_out, 0.2)[1] < 0.9 * before
    for layer in trainer.model.model.layers[2:]:
        assert layer.mamba.out_proj.weight.abs().max() > 0
