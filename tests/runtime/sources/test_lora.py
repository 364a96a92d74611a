"""LoRA adapters: a merged model is the one that peft merges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.sources.lora import merge_adapter
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from tests.models import tiny_model, tiny_spec

TOKENS = torch.arange(24)[None] + 5
ALL_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def fresh(kind: str = "llama", **overrides: Any) -> Any:
    return tiny_model(tiny_spec(kind, **overrides))


def adapter(folder: Path, model: Any, **options: Any) -> Path:
    """An adapter whose matrices are random, not the zeros that training begins with."""
    wrapped = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(wrapped.named_parameters()):
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    wrapped.save_pretrained(folder)
    return folder


def merged_by_peft(model: Any, folder: Path) -> Any:
    return PeftModel.from_pretrained(model, folder).merge_and_unload()


OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "all linears, rank stabilised": {"r": 8, "lora_alpha": 5, "use_rslora": True, "target_modules": ALL_LINEARS},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ALL_LINEARS,
        "rank_pattern": {"layers.0.self_attn.q_proj": 2, "up_proj": 6},
        "alpha_pattern": {"down_proj": 3},
    },
    "whole modules": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]},
    "embedding": {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "k_proj"]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_merged_model_is_the_one_that_peft_merges(tmp_path: Path, name: str) -> None:
    folder = adapter(tmp_path / "adapter", fresh(), **OPTIONS[name])
    plain, model, want = fresh(), fresh(), merged_by_peft(fresh(), folder)
    merge_adapter(model, folder)
    with torch.no_grad():
        assert (model(TOKENS).logits - plain(TOKENS).logits).abs().max() > 0.1
        assert (model(TOKENS).logits - want(TOKENS).logits).abs().max() < 1e-5


def test_layers_that_are_stored_the_other_way_round(tmp_path: Path) -> None:
    import transformers

    def gpt2() -> Any:
        torch.manual_seed(0)
        config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=64)
        return transformers.GPT2LMHeadModel(config).eval()

    options = {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}
    folder = adapter(tmp_path / "adapter", gpt2(), **options)
    model, want = gpt2(), merged_by_peft(gpt2(), folder)
    merge_adapter(model, folder)
    with torch.no_grad():
        assert (model(TOKENS).logits - want(TOKENS).logits).abs().max() < 1e-5


def test_refusals_come_before_anything_is_changed(tmp_path: Path) -> None:
    model = fresh()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def refused(folder: Path, error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=says):
            merge_adapter(model, folder)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

    refused(tmp_path / "nowhere", ExportError, "no such folder")
    refused(tmp_path, ExportError, "it has no adapter_config.json")
    dora = adapter(tmp_path / "dora", fresh(), r=2, use_dora=True, target_modules=["q_proj"])
    refused(dora, UnsupportedModelError, "uses use_dora")
    odd = adapter(tmp_path / "odd", fresh(), r=2, target_modules=["q_proj"])
    config = json.loads((odd / "adapter_config.json").read_text())
    (odd / "adapter_config.json").write_text(json.dumps(config | {"r": 64}))
    refused(odd, ExportError, "which is not of rank 64")
    wide = adapter(tmp_path / "wide", fresh(hidden=128), r=2, target_modules=["o_proj"])
    refused(wide, ExportError, r"is for a model\.layers\.0\.self_attn\.o_proj\.weight of \[128, 64\]")
    deep = adapter(tmp_path / "deep", fresh(layers=3), r=2, target_modules=["q_proj"])
    refused(deep, UnsupportedModelError, "layers.2.self_attn.q_proj.lora_A.weight, which the model does not have")

    half = adapter(tmp_path / "half", fresh(), r=2, target_modules=["q_proj"])
    weights = load_file(half / "adapter_model.safetensors")
    save_file({name: w for name, w in weights.items() if "lora_A" in name}, half / "adapter_model.safetensors")
    refused(half, ExportError, "has one of its two matrices")
    (half / "adapter_model.safetensors").write_bytes(b"cut")
    refused(half, ExportError, "adapter_model.safetensors cannot be read")
    (half / "adapter_config.json").write_text(json.dumps({"peft_type": "LOHA"}))
    refused(half, UnsupportedModelError, "an adapter of type LOHA; only LORA is read")


def test_an_embedding_that_the_head_shares_is_refused(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "adapter", fresh("qwen3"), r=2, target_modules=["embed_tokens"])
    with pytest.raises(UnsupportedModelError, match="changes the embedding, which the model's head shares"):
        merge_adapter(fresh("qwen3"), folder)
