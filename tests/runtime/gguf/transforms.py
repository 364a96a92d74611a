"""What llama.cpp's converter does to the tensors of models of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Tensors = Iterator[tuple[str, Floats]]
Transform = Callable[[Any, str, Floats], Tensors]
"""Of a config, a parameter's name and its value: what is written, by transformers' (or a file's) names."""


def as_it_is(_: Any, name: str, value: Floats) -> Tensors:
    yield name, value


def permuted(config: Any, name: str, value: Floats) -> Tensors:
    """Llama's: the two numbers of a rotation side by side."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((n for part, n in heads.items() if part in name), 0)
    if count:
        value = value.reshape(count, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    yield name, value


def plus_one(_: Any, name: str, value: Floats) -> Tensors:
    yield name, value + np.float32(1) if name.endswith("norm.weight") else value


def across(_: Any, name: str, value: Floats) -> Tensors:
    """GPT-2's."""
    yield name, value.T if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else value


def queries_keys_values(config: Any, name: str, value: Floats) -> Tensors:
    """GPT-NeoX's: of all heads first the queries, then the keys, then the values."""
    if "query_key_value" in name:
        parts = value.reshape(config.num_attention_heads, 3, -1, *value.shape[1:]).swapaxes(0, 1)
        value = parts.reshape(value.shape)
    yield name, value


def falcon_groups(config: Any, name: str, value: Floats) -> Tensors:
    if "query_key_value" in name:
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
        parts = value.reshape(groups, config.num_attention_heads // groups + 2, 16, 64)
        value = np.concatenate([p.reshape(-1, 64) for p in (parts[:, :-2], parts[:, -2], parts[:, -1])])
    yield name, value


def stacked(config: Any, name: str, value: Floats, then: Transform = as_it_is) -> Tensors:
    """Experts as files have them: the gate's and the others apart."""
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(value, 2, axis=1)
        yield name.replace("gate_up_proj", "gate_proj.weight"), gate
        yield name.replace("gate_up_proj", "up_proj.weight"), up
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", value
    else:
        yield from then(config, name, value)


def granite_experts(config: Any, name: str, value: Floats) -> Tensors:
    place = name.replace("model.layers.", "blk.").partition(".block_sparse_moe")[0]
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(value, 2, axis=1)
        yield f"{place}.ffn_gate_exps.weight", gate
        yield f"{place}.ffn_up_exps.weight", up
    elif name.endswith("experts.down_proj"):
        yield f"{place}.ffn_down_exps.weight", value
    elif name.endswith("router.weight"):
        yield f"{place}.ffn_gate_inp.weight", value
    else:
        yield from permuted(config, name, value)


def by_turns(_: Any, name: str, value: Floats) -> Tensors:
    """gpt-oss's: gate and others are transposed and by turns."""
    if name.endswith(("experts.gate_up_proj", "experts.gate_up_proj_bias")):
        end = ".bias" if name.endswith("_bias") else ".weight"
        rows = value.swapaxes(1, 2) if end == ".weight" else value
        stem = name.removesuffix("_bias").removesuffix("gate_up_proj")
        yield f"{stem}gate_proj{end}", rows[:, ::2]
        yield f"{stem}up_proj{end}", rows[:, 1::2]
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", value.swapaxes(1, 2)
    elif name.endswith("experts.down_proj_bias"):
        yield name.replace("down_proj_bias", "down_proj.bias"), value
    elif name.endswith("sinks"):
        yield f"{name}.weight", value
    else:
        yield name, value


def shared_gate_is_a_vector(config: Any, name: str, value: Floats) -> Tensors:
    yield from stacked(config, name, value[0] if name.endswith("shared_expert_gate.weight") else value)
