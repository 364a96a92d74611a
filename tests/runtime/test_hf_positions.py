"""How far a history may go, by the config alone."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from agentkv_runtime.errors import ExportError
from agentkv_runtime.hf.positions import long_factors, position_limit, trained_positions

LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 48,
    "long_factor": [2.0] * 48,
}
PHI3 = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_parameters": LONG}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (transformers.LlamaConfig(max_position_embeddings=2048), 2048),
        (transformers.GPT2Config(n_positions=512), 512),
        (transformers.OPTConfig(max_position_embeddings=64), 64),
        (transformers.MptConfig(max_seq_len=128), 128),
        (transformers.WhisperConfig(max_target_positions=448), 448),
        (transformers.BloomConfig(), None),
        (transformers.Phi3Config(**PHI3), 4096),
        (transformers.LlamaConfig(max_position_embeddings=300, rope_parameters=DYNAMIC), 300),
        (transformers.Gemma3TextConfig(max_position_embeddings=700), 700),
    ],
)
def test_what_the_config_names(config: Any, limit: int | None) -> None:
    assert position_limit(config) == limit


@pytest.mark.parametrize(
    ("max_context", "limit", "long"),
    [(1, 1, False), (4096, 4096, False), (4097, 4097, True), (131072, 131072, True), (10**6, 131072, True)],
)
def test_a_long_rope_model_goes_beyond_its_original_context_when_asked_to(
    max_context: int, limit: int, long: bool
) -> None:
    config = transformers.Phi3Config(**PHI3)
    assert (position_limit(config, max_context), long_factors(config, max_context)) == (limit, long)


@pytest.mark.parametrize(
    ("parameters", "trained"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 64),
        ({"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 128}, 128),
        ({"rope_type": "linear", "factor": 4.0}, None),
        ({"rope_type": "default"}, None),
    ],
)
def test_what_the_model_was_trained_on(parameters: dict[str, Any], trained: int | None) -> None:
    config = transformers.LlamaConfig(max_position_embeddings=256, rope_parameters={"rope_theta": 1e4, **parameters})
    assert trained_positions(config) == trained
    assert position_limit(config) == 256


def test_models_without_rope_tell_no_trained_length() -> None:
    assert trained_positions(transformers.BloomConfig()) is None


def test_other_models_end_where_asked_to_at_the_latest() -> None:
    config = transformers.LlamaConfig(max_position_embeddings=100)
    assert (position_limit(config, 50), position_limit(config, 500)) == (50, 100)
    assert not long_factors(config, 500)
    assert position_limit(transformers.BloomConfig(), 7) == 7


def test_a_history_has_a_position() -> None:
    with pytest.raises(ExportError, match="max_context is 0"):
        position_limit(transformers.LlamaConfig(), 0)
