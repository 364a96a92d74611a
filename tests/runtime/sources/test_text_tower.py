"""Language models of vision-language checkpoints: text has the logits that the whole checkpoint gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from agentkv_runtime.errors import ExportError
from agentkv_runtime.sources.source import described, load_source

from tests.models import VOCAB_SIZE, write_tokenizer

TOKENS = torch.arange(24)[None] + 5
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
QWEN_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TOKEN_IDS = {"image_token_id": 380, "video_token_id": 381, "vision_start_token_id": 382, "vision_end_token_id": 383}


def llava() -> Any:
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=transformers.LlamaConfig(**TEXT), image_token_id=380
    )
    return transformers.LlavaForConditionalGeneration(config)


def qwen2_vl() -> Any:
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": QWEN_ROPE}, vision_config=vision, **TOKEN_IDS
    )
    return transformers.Qwen2VLForConditionalGeneration(config)


def qwen3_vl() -> Any:
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = transformers.Qwen3VLConfig(
        text_config={**TEXT, "head_dim": 16, "rope_parameters": QWEN_ROPE},
        vision_config={**vision, "deepstack_visual_indexes": [0]},
        **TOKEN_IDS,
    )
    return transformers.Qwen3VLForConditionalGeneration(config)


def written(folder: Path, model: Any) -> Any:
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    model.eval().save_pretrained(folder)
    write_tokenizer(folder)
    return model


@pytest.mark.parametrize("make", [llava, qwen2_vl, qwen3_vl])
def test_text_has_the_logits_of_the_whole_checkpoint(tmp_path: Path, make: Any) -> None:
    whole = written(tmp_path, make())
    with described(tmp_path) as words:
        assert (words.folder / "tokenizer.json").is_file()
        tower = load_source(tmp_path, words.folder, None)
    assert type(tower).__name__ in ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
    with torch.no_grad():
        want, got = whole(input_ids=TOKENS).logits, tower(TOKENS).logits
    assert want.std() > 0.1
    assert (got - want).abs().max() < 1e-4


def test_a_checkpoint_without_its_language_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    written(tmp_path, llava())
    weights = load_file(tmp_path / "model.safetensors")
    save_file({k: w for k, w in weights.items() if "layers.1.mlp" not in k}, tmp_path / "model.safetensors")
    with described(tmp_path) as words, pytest.raises(ExportError, match="weights of its language model are missing"):
        load_source(tmp_path, words.folder, None)
