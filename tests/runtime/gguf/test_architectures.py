"""Every architecture, against transformers on a tiny random model that is written as a GGUF file: its config, each
parameter to the bit, and the logits of the model that is made from them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.gguf.architectures import ARCHITECTURES, describe
from agentkv_runtime.gguf.file import open_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.runtime.gguf.rows import ARCHITECTURES as ROWS
from tests.runtime.gguf.tiny_files import tiny_model, write_file

TOKENS = (torch.arange(40) * 7).remainder(97)[None] + 3
OF_NO_FILE = {"architectures", "dtype", "transformers_version", "_name_or_path", "head_dim"}


def same(one: Any, other: Any) -> bool:
    """Floats as files have them: of 32 bits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=2e-7)
    return bool(one == other)


def test_every_architecture_is_tried() -> None:
    assert {row.name for row in ROWS.values()} == ARCHITECTURES.keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_file_gives_back_the_model_that_was_written(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    model = tiny_model(row)
    write_file(tmp_path / "model.gguf", row, model)
    description = describe(open_file(tmp_path / "model.gguf"))
    config = AutoConfig.for_model(**json.loads(json.dumps(description.config)))
    got, want = config.to_dict(), {**model.config.to_dict(), **row.unsaid}
    differing = {key for key in got.keys() | want.keys() if not same(got.get(key), want.get(key))}
    assert {key: (got.get(key), want.get(key)) for key in differing - OF_NO_FILE} == {}

    weights = description.weights()
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    parameters = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name not in tied}
    assert set(weights.names()) == parameters.keys()
    loaded = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    places = loaded.state_dict()
    for name in parameters:
        value = weights.floats(name)
        assert value.shape == parameters[name].shape
        if "norm" in name:  # one more and one less
            np.testing.assert_allclose(value, parameters[name], rtol=0, atol=3e-7)
        else:
            assert np.array_equal(value, parameters[name]), name
        with torch.no_grad():
            places[name].copy_(torch.from_numpy(value))
    with torch.no_grad():
        logits = model(TOKENS).logits
        assert logits.std() > 0.01
        torch.testing.assert_close(loaded(TOKENS).logits, logits, rtol=1e-4, atol=1e-4)
