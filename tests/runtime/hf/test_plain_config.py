"""Configs that are read without transformers, held to transformers' own reading of the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export.direct.decoder import FAMILIES
from agentkv_runtime.hf.plain_config import plain_config
from transformers import AutoConfig

SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
LLAMA3 = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
FACTORS = {"short_factor": [1.0 + i / 9 for i in range(24)], "long_factor": [1.0 + i for i in range(24)]}
WIDE_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}

# What is beside the sizes in a config.json, of today and of before `rope_parameters`.
SAID: list[dict[str, Any]] = [
    *({"model_type": kind} for kind in FAMILIES),  # nothing: every default
    *({"model_type": kind, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}} for kind in FAMILIES
      if kind != "gemma3_text"),
    *({"model_type": kind, "rope_theta": 5e5, "tie_word_embeddings": True} for kind in FAMILIES),
    {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}, "head_dim": None},
    {"model_type": "llama", "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    {"model_type": "llama", "num_key_value_heads": 4, "head_dim": 128, "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", "sliding_window": 64, "layer_types": ["full_attention"] * 12},
    {"model_type": "mistral", "sliding_window": None, "rope_theta": 1e6, "head_dim": 128},
    {"model_type": "mistral", "sliding_window": 512, "num_key_value_heads": 8},
    {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 512, "max_window_layers": 6},
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 512, "max_window_layers": 6},
    {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}},
    {"model_type": "qwen3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "head_dim": 64},
    {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"] * 6, "use_sliding_window": True},
    {"model_type": "smollm3", "no_rope_layers": [1, 0] * 6},
    {"model_type": "smollm3", "no_rope_layer_interval": 3, "use_sliding_window": True, "sliding_window": 64},
    {"model_type": "phi3", "rope_scaling": {"type": "longrope", **FACTORS}, "partial_rotary_factor": 0.75},
    {"model_type": "phi3", "rope_scaling": {"type": "longrope", **FACTORS}, "partial_rotary_factor": 0.75,
     "original_max_position_embeddings": 1024, "max_position_embeddings": 8192, "sliding_window": 2047},
    {"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None},
    {"model_type": "gemma3_text", **WIDE_HEADS, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    {"model_type": "gemma3_text", **WIDE_HEADS, "rope_theta": 2e6, "rope_local_base_freq": 2e4, "sliding_window": 512,
     "sliding_window_pattern": 3, "query_pre_attn_scalar": 168},
    {"model_type": "gemma3_text", **WIDE_HEADS, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    {"model_type": "seed_oss", "num_key_value_heads": 8, "attention_out_bias": True},
]  # fmt: skip

# Settings of transformers that mean nothing to a family, or that only describe.
WITHOUT_MEANING = {"sliding_window", "layer_types"}


def written(place: Path, said: dict[str, Any]) -> Path:
    (place / "config.json").write_text(json.dumps(SIZES | said))
    return place


def meaning(config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """What a model makes of it: rules of rope without the older names, windows only where layers slide."""
    found = {name: config.get(name) for name in names - {"rope_parameters", *WITHOUT_MEANING}}
    rules = config["rope_parameters"]
    nested = {kind: each for kind, each in rules.items() if isinstance(each, dict)} or {"": rules}
    of_no_use = (("partial_rotary_factor", 1.0), *(("type", each.get("type")) for each in nested.values()))
    found["rope"] = {
        kind: dict(item for item in each.items() if item not in of_no_use) for kind, each in nested.items()
    }
    return found


@pytest.mark.parametrize("said", SAID, ids=lambda said: "-".join(map(str, said))[:60])
def test_a_config_is_read_as_transformers_reads_it(said: dict[str, Any], tmp_path: Path) -> None:
    folder = written(tmp_path, said)
    got, want = plain_config(folder), AutoConfig.from_pretrained(folder)
    names = {name for name in got if hasattr(want, name)} - {"type", "rope_scaling", "rope_theta"}
    assert meaning(got, names) == meaning({name: getattr(want, name) for name in names}, names)
    assert got["head_dim"] == getattr(want, "head_dim", SIZES["hidden_size"] // SIZES["num_attention_heads"])
    if got["layer_types"] is not None:
        assert got["layer_types"] == want.layer_types
        if "sliding_attention" in got["layer_types"]:
            assert got["sliding_window"] == want.sliding_window
    elif said["model_type"] in ("mistral", "phi3"):
        assert got["sliding_window"] == want.sliding_window
    else:  # whatever the file says: their attention knows none
        assert got["sliding_window"] is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": None}, "hidden_size is None"),
    ({"hidden_size": "1024"}, "hidden_size is '1024'"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"vocab_size": 1 << 40}, "vocab_size is"),
    ({"num_key_value_heads": 3}, "num_attention_heads is 32, and no multiple of num_key_value_heads, 3"),
    ({"head_dim": 63}, "head_dim is 63, and odd"),
    ({"rms_norm_eps": 1e-300}, "rms_norm_eps is 1e-300"),
    ({"hidden_act": ["silu"]}, r"hidden_act is \['silu'\]"),
    ({"hidden_act": None}, "hidden_act is None"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', and must be one of"),
    ({"attention_bias": 1}, "attention_bias is 1"),
    ({"rope_theta": 0}, "rope_theta is 0"),
    ({"rope_parameters": {"rope_type": ["yarn"]}}, r"rope_type of rope_parameters is \['yarn'\]"),
    ({"rope_parameters": {"rope_type": "yarn", "mscale": "1"}}, "mscale is '1'"),
    ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "1"}, "max_window_layers is '1'"),
    ({"model_type": "gemma3_text", "query_pre_attn_scalar": [8]}, r"query_pre_attn_scalar is \[8\]"),
    ({"model_type": "gemma3_text", "query_pre_attn_scalar": 10**400}, "query_pre_attn_scalar is 1000"),
    ({"model_type": "gemma3_text", "hidden_activation": {}}, "hidden_activation is {}"),
    ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
    ({"rope_parameters": [1]}, r"rope_parameters is \[1\]"),
    ({"rope_parameters": {"rope_type": "linear"}}, "have no factor"),
    ({"rope_scaling": {"": {}}}, "rope_parameters have rules of their own for ''"),
    ({"rope_parameters": {"rope_type": "linear", "factor": "4"}}, "factor is '4'"),
    ({"rope_parameters": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor"),
    ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta is nan"),
    ({"rope_parameters": {"partial_rotary_factor": 3.0}}, "turn 192 of 64"),
    ({"rope_parameters": {"rope_type": "longrope", **FACTORS}}, "short_factor of rope_parameters has not 32"),
    ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types is"),
    ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 12}, "layer_types is"),
    ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 12}, "sliding_window does not say"),
    ({"model_type": "smollm3", "no_rope_layers": [1, 2] * 6}, "no_rope_layers is"),
]


@pytest.mark.parametrize(("said", "why"), WRONG, ids=lambda value: str(value)[:50])
def test_a_setting_that_cannot_be_is_named(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=why) as caught:
        plain_config(written(tmp_path, {"model_type": "llama", **said}))
    assert "config.json" in str(caught.value)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "qwen3_moe"}, "qwen3_moe"),
    ({"model_type": None}, "type None"),
    ({"model_type": ["llama"]}, "llama"),
    ({"model_type": "llama", "quantization_config": {"quant_method": "awq"}}, "quantization_config of llama"),
    ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ({"model_type": "llama", "partial_rotary_factor": 0.5}, "partial_rotary_factor of llama"),
]


@pytest.mark.parametrize(("said", "why"), UNSUPPORTED, ids=lambda value: str(value)[:50])
def test_what_needs_torch_is_named(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        plain_config(written(tmp_path, said))


OF_OTHERS: dict[str, Any] = {
    "query_pre_attn_scalar": [8],
    "final_logit_softcapping": 30.0,
    "hidden_activation": "relu",
    "no_rope_layers": [0] * 12,
    "layer_types": ["sliding_attention"] * 12,
    "max_seq_len": 16,
    "mlp_bias": "yes",
}

ITS_OWN = dict.fromkeys(FAMILIES, "") | {"gemma3_text": "final_logit_softcapping"}


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_means_nothing_to_a_family_changes_nothing(kind: str, tmp_path: Path) -> None:
    said = {"model_type": kind}
    want = plain_config(written(tmp_path, said))
    others = {name: value for name, value in OF_OTHERS.items() if want.get(name) is None and name not in ITS_OWN[kind]}
    assert len(others) >= 3
    assert plain_config(written(tmp_path, said | others)) == want
