"""Rotary positions: what each spelling in a file becomes, against llama.cpp's reading of it, or why it is refused.

One more case is a row of `SCALINGS`: keys of a file, and the rules of transformers, or the error and what it says.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime.errors import GGUFError, UnsupportedModelError
from agentkv_runtime.gguf.file import GGUFFile, Tensor
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.rope import rope_parameters

Rules = dict[str, Any]
PLAIN: Rules = {"rope_theta": 10000.0, "rope_type": "default"}
YARN: Rules = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
STATED = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 2048}

SCALINGS: list[tuple[dict[str, Any], Rules | type[Exception], str]] = [
    ({}, PLAIN, ""),
    ({"rope.freq_base": 500000.0}, {**PLAIN, "rope_theta": 500000.0}, ""),
    ({"rope.scaling.type": "none"}, PLAIN, ""),
    ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, PLAIN, ""),
    ({"rope.scaling.type": "none", "rope.scaling.original_context_length": 2048}, PLAIN, ""),
    ({"rope.scaling.type": "linear"}, PLAIN, ""),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, {"rope_type": "linear", "factor": 8.0}, ""),
    ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}, ""),
    ({"rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}, ""),
    ({"rope.scale_linear": 2}, {"rope_type": "linear", "factor": 2.0}, ""),
    ({"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 4.0}, ""),
    ({"rope.scaling.factor": 0.0}, PLAIN, ""),
    ({"rope.scale_linear": 1.0}, PLAIN, ""),
    ({"rope.scaling.attn_factor": 1.0}, PLAIN, ""),
    (STATED, YARN, ""),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, YARN | {"original_max_position_embeddings": 8192}, ""),
    ({"rope.scaling.type": "yarn"}, PLAIN, ""),
    ({**STATED, "rope.scaling.yarn_beta_fast": 16.0}, YARN | {"beta_fast": 16.0}, ""),
    ({**STATED, "rope.scaling.yarn_beta_slow": 2.0}, YARN | {"beta_slow": 2.0}, ""),
    ({**STATED, "rope.scaling.yarn_attn_factor": 1.5}, YARN | {"attention_factor": 1.5}, ""),
    ({**STATED, "rope.scaling.yarn_log_multiplier": 0.5}, YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}, ""),
    ({**STATED, "rope.scaling.attn_factor": 2.0}, YARN | {"attention_factor": 2 * (0.1 * math.log(4) + 1)}, ""),
    ({**STATED, "rope.scaling.yarn_ext_factor": 1.0}, YARN, ""),
    ({**STATED, "rope.scaling.yarn_ext_factor": 0.5}, UnsupportedModelError, "another factor than 1"),
    ({"rope.scaling.type": "longrope"}, UnsupportedModelError, "'longrope'"),
    ({"rope.scaling.type": "su"}, UnsupportedModelError, "'su'"),
    ({"rope.scaling.type": 3}, UnsupportedModelError, "by 3"),
    ({"rope.scaling.attn_factor": 1.2}, UnsupportedModelError, r"attn_factor is 1\.2"),
    ({"rope.scaling.factor": -2.0}, GGUFError, r"-2\.0, which is no factor"),
    ({"rope.scaling.factor": math.nan}, GGUFError, "nan, which is no factor"),
    ({"rope.scaling.factor": 1e-45}, GGUFError, "1e-45, which is no factor"),
    ({**STATED, "rope.freq_base": 1.0}, GGUFError, r"rope\.freq_base is 1\.0, and must be above 1"),
    ({**STATED, "rope.scaling.original_context_length": 0}, GGUFError, "from 0 positions on"),
    ({"rope.scale_linear": math.inf}, GGUFError, "inf, which is no factor"),
    ({"rope.scale_linear": "2"}, GGUFError, "'2', which is no factor"),
    ({"rope.scale_linear": True}, GGUFError, "True, which is no factor"),
    ({"rope.freq_base": 0.0}, GGUFError, r"rope\.freq_base is 0\.0, and must be above 1"),
    ({"rope.freq_base": -10000.0}, GGUFError, r"rope\.freq_base is -10000\.0, and must be above 1"),
    ({"rope.dimension_count": 64}, UnsupportedModelError, "64 of 128 numbers of a head are turned"),
]


def keys_of(stated: dict[str, Any], **tensors: Any) -> Keys:
    metadata = {"general.architecture": "llama", "llama.context_length": 8192, "qwen2.rope.scaling.type": "yarn"}
    metadata |= {f"llama.{key}": value for key, value in stated.items()}
    held = {}
    for name, numbers in tensors.items():
        data = np.asarray(numbers, np.float32)
        held[f"{name}.weight"] = Tensor(f"{name}.weight", 0, data.shape, data.view(np.uint8))
    return Keys(GGUFFile(Path("model"), (Path("model"),), metadata, held))


@pytest.mark.parametrize(("stated", "expected", "why"), SCALINGS, ids=lambda value: str(value)[:60])
def test_positions_are_scaled_as_the_file_says_or_it_is_refused(
    stated: dict[str, Any], expected: Rules | type[Exception], why: str
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected, match=f"model: .*{why}"):
            rope_parameters(keys_of(stated), 128)
    else:
        assert rope_parameters(keys_of(stated), 128) == {"rope_theta": 10000.0, **expected}


def test_a_part_of_each_head_is_turned_where_that_is_known() -> None:
    assert rope_parameters(keys_of({"rope.dimension_count": 32}), 128, partial=True)["partial_rotary_factor"] == 0.25
    assert rope_parameters(keys_of({}), 128, partial=True)["partial_rotary_factor"] == 1
    for turned in (33, 256):
        with pytest.raises(UnsupportedModelError, match=f"{turned} of 128"):
            rope_parameters(keys_of({"rope.dimension_count": turned}), 128, partial=True)


def test_factors_of_frequencies_are_llama_3s_or_none(tmp_path: Path) -> None:
    assert rope_parameters(keys_of({}, rope_freqs=np.ones(64)), 128) == PLAIN
    with pytest.raises(UnsupportedModelError, match="another rule than Llama 3's"):
        rope_parameters(keys_of({}, rope_freqs=np.arange(1, 65)), 128)
    with pytest.raises(GGUFError, match=r"rope_freqs\.weight is \[63\], and must be \[64\]"):
        rope_parameters(keys_of({}, rope_freqs=np.ones(63)), 128)
    with pytest.raises(UnsupportedModelError, match="in two ways at once"):
        rope_parameters(keys_of({"rope.scale_linear": 4.0}, rope_freqs=np.ones(64)), 128)
    with pytest.raises(UnsupportedModelError, match="in two ways at once"):
        rope_parameters(keys_of({}, rope_freqs=np.ones(64), rope_factors_long=np.ones(64)), 128)


def test_factors_of_long_texts_come_with_those_of_short_ones() -> None:
    stated = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 4096}
    long, short = np.arange(1, 65), np.ones(64)
    rules = rope_parameters(keys_of(stated, rope_factors_long=long, rope_factors_short=short), 128)
    assert (rules["rope_type"], rules["original_max_position_embeddings"]) == ("longrope", 4096)
    assert (rules["long_factor"], rules["short_factor"]) == (long.tolist(), short.tolist())
    assert "attention_factor" not in rules
    usual = float(np.float32(math.sqrt(1 + math.log(2) / math.log(4096))))
    for magnitude, expected in ((usual, None), (1.5, 1.5), (1.0, 1.0)):
        keys = keys_of(
            {**stated, "rope.scaling.attn_factor": magnitude}, rope_factors_long=long, rope_factors_short=short
        )
        assert rope_parameters(keys, 128).get("attention_factor") == expected
    with pytest.raises(GGUFError, match=r"rope_factors_short\.weight is None, and must be \[64\]"):
        rope_parameters(keys_of(stated, rope_factors_long=long), 128)
