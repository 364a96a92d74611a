"""LoRA adapters in GGUF files: the same as peft's folder, or refused in words."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime.adapters import read_adapter
from agentkv_runtime.errors import AdapterError
from agentkv_runtime.folder.manifest import LinearLayers

from tests.adapters import PARTS, PREFIX, gguf_tensors, write_adapter, write_gguf

HEAD_DIM, HIDDEN, INNER = 4, 16, 12
SHAPES = {
    "self_attn.q_proj": (16, HIDDEN),
    "self_attn.k_proj": (8, HIDDEN),
    "self_attn.v_proj": (8, HIDDEN),
    "self_attn.o_proj": (HIDDEN, 16),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
PROGRAM = {
    f"w{layer}.{name}": LinearLayers(inputs=inputs, layers=((f"model.layers.{layer}.{name}", outputs),))
    for layer in range(2)
    for name, (outputs, inputs) in SHAPES.items()
}
Tensors = dict[str, np.ndarray[Any, Any]]
Q = "blk.0.attn_q.weight"


def matrices(rank: int = 4) -> Tensors:
    numbers = np.random.default_rng(0)
    return {
        f"{PREFIX}model.layers.{layer}.{name}.lora_{side}.weight": numbers.standard_normal(shape).astype(np.float32)
        for layer in range(2)
        for name, (outputs, inputs) in SHAPES.items()
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank)))
    }


def plain(of: Tensors) -> Tensors:
    """As converters write those whose rows stay in order."""
    return gguf_tensors(of, 2)


@pytest.mark.parametrize(("architecture", "head_dim"), [("llama", HEAD_DIM), ("qwen2", 2), ("gemma3", 2)])
def test_a_file_is_the_adapter_of_the_folder(tmp_path: Path, architecture: str, head_dim: int) -> None:
    """Llama's queries and keys lie in another order; heads of 2 have but one order."""
    folder = write_adapter(tmp_path / "a", matrices(), rank=4, lora_alpha=8)
    file = write_gguf(tmp_path / "a.gguf", gguf_tensors(matrices(), head_dim), architecture)
    ours, theirs = (read_adapter(path, PROGRAM, HEAD_DIM) for path in (file, folder))
    assert (ours.digest, ours.modules, ours.rank) == (theirs.digest, theirs.modules, 4)
    for (weight, ((first, a, b),)), (other, ((begin, other_a, other_b),)) in zip(
        ours.weights, theirs.weights, strict=True
    ):
        assert (weight, first) == (other, begin)
        assert np.array_equal(a, other_a)
        assert np.array_equal(b, other_b)


@pytest.mark.parametrize(("alpha", "scale"), [(8.0, 2.0), (1.0, 0.25), (0.0, 1.0), (None, 1.0)])
def test_alpha_scales_by_the_rank(tmp_path: Path, alpha: float | None, scale: float) -> None:
    name = "blk.1.ffn_down.weight"
    tensors = {each: matrix for each, matrix in plain(matrices()).items() if each.startswith(name)}
    read = read_adapter(write_gguf(tmp_path / "a.gguf", tensors, adapter__lora__alpha=alpha), PROGRAM, HEAD_DIM)
    ((_, ((_, a, b),)),) = read.weights
    assert read.modules == ("model.layers.1.mlp.down_proj",)
    assert np.array_equal(a, tensors[f"{name}.lora_a"])
    assert np.array_equal(b, tensors[f"{name}.lora_b"] * np.float32(scale))


def test_halves_are_read(tmp_path: Path) -> None:
    tensors = {name: matrix.astype(np.float16) for name, matrix in plain(matrices()).items()}
    ((_, ((_, a, _),)), *_) = read_adapter(write_gguf(tmp_path / "a.gguf", tensors), PROGRAM, HEAD_DIM).weights
    assert a.dtype == np.float32


def with_tensor(name: str, shape: tuple[int, ...], fill: float = 0.0) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: np.full(shape, fill, np.float32)}


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: matrix for key, matrix in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("keys", "change", "said"),
    [
        ({"general__type": None}, None, "general.type is None, and must be 'adapter'"),
        ({"general__type": "model"}, None, "general.type is 'model'"),
        ({"adapter__type": None}, None, "adapter.type is None, and must be 'lora'"),
        ({"adapter__type": "control_vector"}, None, "adapter.type is 'control_vector'"),
        ({"adapter__type": "\x1b[2J"}, None, r"adapter.type is '\\x1b\[2J'"),
        ({"adapter__lora__alpha": -1.0}, None, "alpha is -1.0, and must be a number from 0"),
        ({"adapter__lora__alpha": float("nan")}, None, "alpha is nan"),
        ({"adapter__lora__alpha": float("inf")}, None, "alpha is inf"),
        ({"adapter__lora__alpha": "eight"}, None, "alpha is 'eight'"),
        ({"adapter__alora__invocation_tokens": [1, 2]}, None, "an activated LoRA"),
        ({"architecture": "clip"}, None, "general.architecture is 'clip', whose adapters are not read"),
        ({}, without(f"{Q}.lora_a"), "has one of its two matrices"),
        ({}, without(f"{Q}.lora_b"), "has one of its two matrices"),
        ({}, lambda _: {}, "holds no weights"),
        ({}, with_tensor(f"{Q}.lora_a", (3, HIDDEN)), r"are \[3, 16\] and \[16, 4\], which are no \[rank, inputs\]"),
        ({}, with_tensor(f"{Q}.lora_a", (4, 2, 8)), r"no \[rank, inputs\]"),
        ({}, with_tensor(f"{Q}.lora_b", (4,)), r"no \[rank, inputs\]"),
        ({}, with_tensor(f"{Q}.lora_a", (4, 15)), r"is \[16, 15\], and the model's \[16, 16\]"),
        ({}, with_tensor(f"{Q}.lora_b", (15, 4)), r"is \[15, 16\], and the model's \[16, 16\]"),
        ({}, with_tensor(f"{Q}.lora_b", (20, 4)), r"is \[20, 16\], and the model's \[16, 16\]"),
        ({}, with_tensor(f"{Q}.lora_b", (16, 4), np.inf), "blk.0.attn_q.weight.lora_b holds infinities or NaN"),
        ({}, with_tensor(f"{Q}.lora_a", (4, 16), np.nan), "holds infinities or NaN"),
        ({}, with_tensor("token_embd.weight.lora_a", (4, 16)), "changes token_embd.weight.lora_a"),
        ({}, with_tensor("output.weight.lora_b", (16, 4)), "changes output.weight.lora_b"),
        ({}, with_tensor("blk.0.attn_norm.weight", (16,)), "changes blk.0.attn_norm.weight"),
        ({}, with_tensor("blk.0.ffn_gate_exps.weight.lora_a", (4, 16)), "changes blk.0.ffn_gate_exps"),
        ({}, with_tensor("blk.00.attn_q.weight.lora_a", (4, 16)), "changes blk.00.attn_q"),
        ({}, with_tensor(f"{Q}.lora_c", (4, 16)), "changes blk.0.attn_q.weight.lora_c"),
        (
            {},
            lambda tensors: tensors | {f"blk.7{name[5:]}": tensors[name] for name in (f"{Q}.lora_a", f"{Q}.lora_b")},
            "the model does not have .*model.layers.7.self_attn.q_proj",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, keys: dict[str, Any], change: Callable[[Tensors], Tensors] | None, said: str
) -> None:
    tensors = plain(matrices())
    path = write_gguf(tmp_path / "a.gguf", change(tensors) if change else tensors, **keys)
    with pytest.raises(AdapterError, match=said):
        read_adapter(path, PROGRAM, HEAD_DIM)


def test_integers_are_refused(tmp_path: Path) -> None:
    tensors = plain(matrices()) | {f"{Q}.lora_a": np.zeros((4, 16), np.int8)}
    with pytest.raises(AdapterError, match="is I8, which cannot be dequantised"):
        read_adapter(write_gguf(tmp_path / "a.gguf", tensors), PROGRAM, HEAD_DIM)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    whole = write_gguf(tmp_path / "a.gguf", plain(matrices())).read_bytes()
    rng, path, refused = random.Random(seed), tmp_path / "damaged.gguf", 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(min(len(data), 1600))] = rng.randrange(256)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            read_adapter(path, PROGRAM, HEAD_DIM)
        except AdapterError:
            refused += 1
    assert refused > 20


def test_every_part_is_tried() -> None:
    assert PARTS.keys() == SHAPES.keys()
