"""Reads config.json as transformers does, for families that are exported without torch. Imports no torch.

`tests/runtime/hf` compares every family with transformers' own reading, for files with and without `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import read_object

__all__ = ["FAMILIES_BY_CLASS", "PlainConfig", "plain_config"]

PlainConfig = dict[str, Any]
"""Settings of a `Decoder`, under transformers' names."""

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_MOST = 1 << 24  # of a size; the largest vocabularies are a hundredth of it
_MOST_LAYERS = 1 << 12
_SMALLEST, _LARGEST = 1e-30, 1e30  # of other numbers, which become float32
_FULL, _SLIDING = "full_attention", "sliding_attention"
_SCALED = ("llama3", "yarn", "longrope")  # beyond an original context
_PARTLY_TURNED = ("phi3",)


@dataclass(frozen=True)
class _Family:
    """Defaults of transformers for one family, and its rules for settings that follow from others."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    theta: float = 10_000.0
    layer_types: Callable[[PlainConfig], list[str]] | None = None
    """Derives the layer types if the file names none; None for families whose layers are all alike."""
    head_dim: int | None = None
    """Default head_dim; None: the hidden size divided by the heads."""
    refused: tuple[str, ...] = ()
    """Settings that are refused, as they change what the model computes."""


def _after_windows(config: PlainConfig) -> list[str]:
    """Layer types of Qwen: sliding from layer `max_window_layers` on, if windows are used."""
    slides, first = config["sliding_window"] is not None, _whole(config, "max_window_layers", least=0)
    return [_SLIDING if slides and i >= first else _FULL for i in range(config["num_hidden_layers"])]


def _every_sixth(config: PlainConfig) -> list[str]:
    """Layer types of Gemma 3: sliding except for every sixth layer."""
    every = _whole(config, "sliding_window_pattern")
    return [_SLIDING if (i + 1) % every else _FULL for i in range(config["num_hidden_layers"])]


def _where_not_turned(config: PlainConfig) -> list[str]:
    """Layer types of SmolLM3: layers without rotary positions slide, if windows are used."""
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    return [_FULL if turned or not slides else _SLIDING for turned in config["no_rope_layers"]]


_COMMON = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "num_key_value_heads": None,
    "head_dim": None,
    "partial_rotary_factor": None,
    "original_max_position_embeddings": None,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": None,
    "rope_local_base_freq": None,
}
_QWEN = {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_FAMILIES: dict[str, _Family] = {
    "llama": _Family({"max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False}),
    "mistral": _Family({"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096}),
    "qwen2": _Family(_QWEN, layer_types=_after_windows),
    "qwen3": _Family(_QWEN | {"attention_bias": False}, layer_types=_after_windows, head_dim=128),
    "seed_oss": _Family(
        {
            "max_position_embeddings": 524288,
            "num_key_value_heads": 8,
            "attention_bias": True,
            "attention_out_bias": False,
            "mlp_bias": False,
        },
        head_dim=128,
    ),
    "smollm3": _Family(
        {
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "use_sliding_window": False,
            "sliding_window": None,
            "no_rope_layer_interval": 4,
            "no_rope_layers": None,
        },
        theta=2_000_000.0,
        layer_types=_where_not_turned,
    ),
    "phi3": _Family(
        {
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
        }
    ),
    "gemma": _Family(
        {
            "max_position_embeddings": 8192,
            "num_key_value_heads": 16,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
            "attention_bias": False,
        },
        head_dim=256,
        refused=("use_bidirectional_attention",),
    ),
    "gemma3_text": _Family(
        {
            "max_position_embeddings": 131072,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
        theta=1_000_000.0,
        layer_types=_every_sixth,
        head_dim=256,
        refused=("use_bidirectional_attention",),
    ),
}
FAMILIES_BY_CLASS = {
    "GemmaForCausalLM": "gemma",
    "Gemma3ForCausalLM": "gemma3_text",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3",
}
"""Model types of the families by transformers' classes, which `architectures` names."""
_LOCAL_THETA = 10_000.0  # of Gemma 3's layers that slide


def plain_config(folder: Path) -> PlainConfig:
    """Reads the config of a folder's model, completed with transformers' defaults.

    Raises UnsupportedModelError for a model of another family, or for a setting that changes what is computed;
    ExportError, naming the setting, for an invalid one.
    """
    path = folder / "config.json"
    said = read_object(path, ExportError)
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise UnsupportedModelError(f"models of type {printable(str(kind)[:40])} are not written without torch")
    try:
        return _read(said, _FAMILIES[kind])
    except _Wrong as error:
        raise ExportError(f"{path}: {error}. Download the whole model") from error


class _Wrong(Exception):
    """An invalid setting, which the message names."""


def _read(said: PlainConfig, family: _Family) -> PlainConfig:
    for name in ("quantization_config", *family.refused):
        if said.get(name):
            raise UnsupportedModelError(f"{name} of {said['model_type']} is not read without torch")
    known = {**_COMMON, **family.defaults}
    # Whatever else a file says means nothing to the family.
    config: PlainConfig = {name: said.get(name, known.get(name)) for name in ("model_type", *_SIZES, *known)}
    if family.layer_types is not None:
        config["layer_types"] = said.get("layer_types")
    for name in _SIZES:
        _whole(config, name)
    if config["num_hidden_layers"] > _MOST_LAYERS:
        raise _Wrong(f"num_hidden_layers is {config['num_hidden_layers']}")
    if config["num_key_value_heads"] is None:
        config["num_key_value_heads"] = config["num_attention_heads"]
    if config["head_dim"] is None:
        config["head_dim"] = family.head_dim or config["hidden_size"] // config["num_attention_heads"]
    for name in ("num_key_value_heads", "head_dim", "max_position_embeddings"):
        _whole(config, name)
    if config["num_attention_heads"] % config["num_key_value_heads"]:
        heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
        raise _Wrong(f"num_attention_heads is {heads}, and no multiple of num_key_value_heads, {shared}")
    if config["head_dim"] % 2:
        raise _Wrong(f"head_dim is {config['head_dim']}, and odd")
    if _number(config, "rms_norm_eps") >= 1:
        raise _Wrong(f"rms_norm_eps is {config['rms_norm_eps']!r:.40}")
    for name, default in known.items():
        if isinstance(default, bool):
            _one_of(config, name, (True, False))
    if "query_pre_attn_scalar" in known:
        _number(config, "query_pre_attn_scalar")
    act = "hidden_activation" if "hidden_activation" in known else "hidden_act"
    if not isinstance(config[act], str):
        raise _Wrong(f"{act} is {config[act]!r:.40}")
    if config["model_type"] == "gemma" and config["hidden_act"] == "gelu":  # as its first files say
        config["hidden_act"] = "gelu_pytorch_tanh"
    _take_layers(config, family)
    config["rope_parameters"] = _rope_parameters(config, family)
    return config


def _take_layers(config: PlainConfig, family: _Family) -> None:
    """Sets the settings that differ between layers."""
    layers = config["num_hidden_layers"]
    if "max_window_layers" in family.defaults and not config["use_sliding_window"]:
        config["sliding_window"] = None
    if "sliding_window" not in family.defaults:
        config["sliding_window"] = None
    elif config["sliding_window"] is not None:
        _whole(config, "sliding_window")
    if "no_rope_layers" in family.defaults:
        if config["no_rope_layers"] is None:
            every = _whole(config, "no_rope_layer_interval")
            config["no_rope_layers"] = [int((i + 1) % every != 0) for i in range(layers)]
        _each(config, "no_rope_layers", (0, 1), layers)
    if family.layer_types is None:
        config["layer_types"] = None
        return
    if config["layer_types"] is None:
        config["layer_types"] = family.layer_types(config)
    _each(config, "layer_types", (_FULL, _SLIDING), layers)
    if _SLIDING in config["layer_types"] and config["sliding_window"] is None:
        raise _Wrong("layers slide, and sliding_window does not say over how much")


def _rope_parameters(config: PlainConfig, family: _Family) -> PlainConfig:
    """`rope_parameters`, also of older files, which have `rope_theta` and `rope_scaling` instead."""
    said, scaling = (_dict_of(config, name) for name in ("rope_parameters", "rope_scaling"))
    theta = family.theta if config["rope_theta"] is None else config["rope_theta"]
    if config["model_type"] == "gemma3_text":
        full, sliding = (dict(_dict_of(said, name)) for name in (_FULL, _SLIDING))
        local = _LOCAL_THETA if config["rope_local_base_freq"] is None else config["rope_local_base_freq"]
        return {
            _SLIDING: _checked(sliding, config, local),
            _FULL: _checked({**full, **scaling}, config, theta),
        }
    return _checked(dict(scaling or said), config, theta)


def _checked(rules: PlainConfig, config: PlainConfig, theta: float) -> PlainConfig:
    for name, rule in rules.items():
        if isinstance(rule, dict):
            raise _Wrong(f"rope_parameters have rules of their own for {name!r:.40}")
    rules.setdefault("rope_type", rules.get("type") or "default")
    if not isinstance(rules["rope_type"], str):
        raise _Wrong(f"rope_type of rope_parameters is {rules['rope_type']!r:.40}")
    if config["model_type"] == "phi3" and rules["rope_type"] in ("su", "yarn"):  # as its first files say
        rules["rope_type"] = "longrope"
    rules.setdefault("rope_theta", theta)
    if (part := config["partial_rotary_factor"]) is not None:
        rules.setdefault("partial_rotary_factor", part)
    if rules["rope_type"] in _SCALED:
        beside = config["original_max_position_embeddings"]
        rules["original_max_position_embeddings"] = (
            beside or rules.get("original_max_position_embeddings") or config["max_position_embeddings"]
        )
    for name in _RULES.get(rules["rope_type"], ()):
        if rules.get(name) is None:
            raise _Wrong(f"rope_parameters have no {name}")
    for name in _RULE_NUMBERS & rules.keys():
        if rules[name] is not None:
            _number(rules, name)
    for name in ("mscale", "mscale_all_dim"):
        if rules.get(name):  # 0 says the same as nothing
            _number(rules, name)
    if rules["rope_type"] == "llama3" and rules["high_freq_factor"] <= rules["low_freq_factor"]:
        raise _Wrong("high_freq_factor of rope_parameters is not above low_freq_factor")
    turned = int(config["head_dim"] * (rules.get("partial_rotary_factor") or 1.0))
    if not 0 < turned <= config["head_dim"] or turned % 2:
        raise _Wrong(f"rope_parameters turn {turned} of {config['head_dim']} numbers of a head")
    if turned < config["head_dim"] and config["model_type"] not in _PARTLY_TURNED:
        raise UnsupportedModelError(f"partial_rotary_factor of {config['model_type']} is not read without torch")
    for name in ("short_factor", "long_factor"):
        if rules["rope_type"] == "longrope":
            factors = dict(enumerate(rules[name])) if isinstance(rules[name], list) else {}
            if len(factors) != turned // 2:
                raise _Wrong(f"{name} of rope_parameters has not {turned // 2} numbers")
            for at in factors:
                _number(factors, at)
    return rules


_RULES = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
"""Parameters that each type of rope requires."""
_RULE_NUMBERS = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
}


def _dict_of(settings: PlainConfig, name: str) -> PlainConfig:
    value = settings.get(name)
    if not isinstance(value, dict | None):
        raise _Wrong(f"{name} is {value!r:.40}")
    return value or {}


def _whole(settings: PlainConfig, name: str, least: int = 1) -> int:
    value = settings.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < _MOST:
        raise _Wrong(f"{name} is {value!r:.40}")
    return value


def _number(settings: Mapping[Any, Any], name: Any) -> float:
    value = settings.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not _SMALLEST < value < _LARGEST:
        raise _Wrong(f"{name} is {value!r:.40}")
    return value


def _one_of(settings: PlainConfig, name: str, allowed: tuple[Any, ...]) -> None:
    if not any(settings[name] is each for each in allowed):
        raise _Wrong(f"{name} is {settings[name]!r:.40}, and must be one of {allowed}")


def _each(settings: PlainConfig, name: str, allowed: tuple[Any, ...], count: int) -> None:
    value = settings[name]
    if not isinstance(value, list) or len(value) < count or any(each not in allowed for each in value):
        raise _Wrong(f"{name} is {value!r:.40}, and must say one of {allowed} for each of {count} layers")
