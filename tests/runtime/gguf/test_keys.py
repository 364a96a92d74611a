"""What a file says of its architecture: values of the wrong kind, and what is not known, are refused by name.

One more case is a row of `WRONG`: keys of a file that are other ones (None: that are not there), and what is said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agentkv_runtime.errors import GGUFError, UnsupportedModelError
from agentkv_runtime.gguf.architectures import describe
from agentkv_runtime.gguf.file import GGUFFile, Tensor, open_file

from tests.runtime.gguf.rows import ARCHITECTURES
from tests.runtime.gguf.tiny_files import tiny_model, write_file


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    path = tmp_path_factory.mktemp("llama") / "model.gguf"
    write_file(path, ARCHITECTURES["llama"], tiny_model(ARCHITECTURES["llama"]))
    return open_file(path)


def changed(file: GGUFFile, keys: dict[str, Any]) -> GGUFFile:
    named = {key if key.startswith("general") else f"llama.{key}": value for key, value in keys.items()}
    metadata = {key: value for key, value in (file.metadata | named).items() if value is not None}
    return GGUFFile(file.path, file.parts, metadata, file.tensors)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"general.architecture": None}, GGUFError, "general.architecture is missing or no text"),
    ({"general.architecture": 3}, GGUFError, "general.architecture is missing or no text"),
    ({"general.architecture": "perceiver"}, UnsupportedModelError, "files of perceiver are not read, only those of"),
    ({"block_count": None}, GGUFError, r"has no llama\.block_count"),
    ({"block_count": 2.0}, GGUFError, r"llama\.block_count is 2\.0, and must be a whole number"),
    ({"block_count": True}, GGUFError, r"llama\.block_count is True, and must be a whole number"),
    ({"block_count": -1}, GGUFError, r"llama\.block_count is -1, and must be a whole number"),
    ({"block_count": 2**30}, GGUFError, r"llama\.block_count does not fit"),
    ({"block_count": 3}, GGUFError, r"blk\.2\.attn_norm\.weight is missing"),
    ({"block_count": 1}, UnsupportedModelError, r"holds 9 tensors that its architecture has no place for \(blk\.1"),
    ({"embedding_length": 32}, GGUFError, r"token_embd\.weight is \[100, 64\], and must be \[100, 32\]"),
    ({"attention.sliding_window": 2**63}, GGUFError, r"is 9223372036854775808, and must be a whole number from 0 to"),
    ({"attention.head_count": 0}, GGUFError, r"llama\.attention\.head_count"),
    ({"attention.head_count": 8}, GGUFError, r"attn_q\.weight is \[64, 64\], and must be \[128, 64\]"),
    ({"attention.head_count_kv": 3}, GGUFError, r"llama\.attention\.head_count_kv does not fit"),
    ({"attention.head_count_kv": [2, 2]}, GGUFError, ""),  # as one number, which is right
    ({"attention.head_count_kv": [2, 1]}, UnsupportedModelError, "attention.head_count_kv differs from layer to layer"),
    ({"attention.key_length": 15}, GGUFError, r"llama\.attention\.(key|value)_length does not fit"),
    ({"attention.value_length": 8}, GGUFError, r"llama\.attention\.value_length does not fit"),
    ({"feed_forward_length": 95}, GGUFError, r"ffn_\w+\.weight is .* by the file's keys"),
    ({"attention.layer_norm_rms_epsilon": None}, GGUFError, r"has no llama\.attention\.layer_norm_rms_epsilon"),
    ({"attention.layer_norm_rms_epsilon": float("nan")}, GGUFError, "is nan, and must be a number"),
    ({"attention.layer_norm_rms_epsilon": "1e-5"}, GGUFError, "is '1e-5', and must be a number"),
    ({"rope.dimension_count": 8}, UnsupportedModelError, "8 of 16 numbers of a head are turned"),
    ({"attention.causal": False}, UnsupportedModelError, "attention is not causal"),
    ({"attention.causal": 1}, GGUFError, "is 1, and must be true or false"),
    ({"expert_count": 4}, GGUFError, r"llama\.expert_count does not fit"),
    ({"expert_count": 4, "expert_used_count": 2}, GGUFError, r"blk\.0\.ffn_gate_inp\.weight is missing"),
    ({"residual_scale": 0.5}, UnsupportedModelError, r"llama\.residual_scale is 0\.5, which is not known of this"),
    ({"residual_scale": 0.0}, GGUFError, ""),  # says nothing
]


@pytest.mark.parametrize(("keys", "error", "said"), WRONG, ids=lambda value: str(value)[:50])
def test_what_is_wrong_or_unknown_is_named(
    llama: GGUFFile, keys: dict[str, Any], error: type[Exception], said: str
) -> None:
    if not said:
        assert describe(changed(llama, keys)).config == describe(llama).config
        return
    with pytest.raises(error, match=said) as refused:
        describe(changed(llama, keys))
    assert str(llama.path) in str(refused.value)


def with_tensor(file: GGUFFile, name: str, *shape: int) -> GGUFFile:
    tensor = Tensor(name, 0, shape, np.zeros((*shape[:-1], shape[-1] * 4), np.uint8))
    return GGUFFile(file.path, file.parts, file.metadata, {**file.tensors, name: tensor})


def test_tensors_without_a_place_and_biases_of_some_are_refused(llama: GGUFFile) -> None:
    with pytest.raises(UnsupportedModelError, match=r"1 tensors that .* no place for \(blk\.0\.attn_q_norm\.weight\)"):
        describe(with_tensor(llama, "blk.0.attn_q_norm.weight", 16))
    some = with_tensor(llama, "blk.0.attn_q.bias", 64)
    with pytest.raises(UnsupportedModelError, match="attn_q has a bias and attn_k has none"):
        describe(some)
    for name, size in (("attn_k", 32), ("attn_v", 32), ("attn_output", 64)):
        some = with_tensor(some, f"blk.0.{name}.bias", size)
    with pytest.raises(GGUFError, match=r"blk\.1\.attn_q\.bias is missing, and blk\.0\.attn_q\.bias is there"):
        describe(some)
    with pytest.raises(GGUFError, match=r"attn_k\.bias is \[33\], and must be \[32\] by the file's keys"):
        describe(with_tensor(llama, "blk.1.attn_k.bias", 33))
