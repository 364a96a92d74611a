"""Rotary frequencies against transformers', which computes them in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.export.frequencies import rotary_frequencies
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
FACTORS = {"short_factor": [1.0 + i / 10 for i in range(24)], "long_factor": [1.0 + i for i in range(24)]}
LONG = {**FACTORS, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75}
RULES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "yarn", **YARN},
    {"rope_type": "yarn", **YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    {"rope_type": "yarn", **YARN, "attention_factor": 1.25},
    {"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1.1},
    {"rope_type": "yarn", **YARN, "factor": 1.0},
    {"rope_type": "longrope", **LONG},
    {"rope_type": "longrope", **LONG, "factor": 32.0},
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(map(str, list(rule.values())[:2]))[:30])
@pytest.mark.parametrize("long", [False, True])
def test_frequencies_are_transformers(rule: dict[str, Any], long: bool) -> None:
    parameters = {"rope_theta": 500000.0, **rule}
    config = LlamaConfig(head_dim=64, max_position_embeddings=131072, rope_parameters=parameters)
    length = 131072 if long else None
    want, scaling = ROPE_INIT_FUNCTIONS[rule["rope_type"]](config, torch.device("cpu"), seq_len=length)
    got = rotary_frequencies(parameters, 64, 131072, long=long)
    assert got is not None
    np.testing.assert_allclose(got.inv_freq, want.numpy(), rtol=1e-5)
    assert got.scaling == pytest.approx(scaling, rel=1e-12)


def test_plain_frequencies_are_rounded_once() -> None:
    got = rotary_frequencies({"rope_theta": 10000.0}, 128, 4096)
    assert got is not None
    assert got.inv_freq.tolist() == [float(np.float32(10000.0 ** -(2 * i / 128))) for i in range(64)]


def test_a_rule_that_is_not_known_is_none() -> None:
    assert rotary_frequencies({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 64, 4096) is None


GIVE_NONE: list[dict[str, Any]] = [
    {"rope_type": "yarn", **YARN, "rope_theta": 1.0},
    {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 1},
    {"rope_type": "longrope", **LONG, "rope_theta": 1e-30, "short_factor": [1e-30] * 24},
    {"rope_type": "linear", "factor": 1e-300},
    {"rope_type": "linear", "factor": 0},
]


@pytest.mark.parametrize("rule", GIVE_NONE, ids=lambda rule: "-".join(map(str, list(rule.values())[:2]))[:30])
def test_numbers_that_no_frequencies_follow_from_are_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rope_parameters give"):
        rotary_frequencies({"rope_theta": 500000.0, **rule}, 64, 131072)
