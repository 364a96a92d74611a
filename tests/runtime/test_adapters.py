"""Adapters beside a program: what is read, what is refused, and logits beside those of peft."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from agentkv_runtime.adapters import read_adapter
from agentkv_runtime.engine import Engine
from agentkv_runtime.errors import AdapterError
from agentkv_runtime.folder.manifest import LinearLayers
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.programs import open_session
from peft import LoraConfig, get_peft_model

from ..adapters import PREFIX, random_adapter, random_matrices, write_adapter
from ..models import VOCAB_SIZE

Matrices = dict[str, np.ndarray[Any, Any]]
LAYER = "model.layers.0.self_attn.q_proj"
A, B = f"{PREFIX}{LAYER}.lora_A.weight", f"{PREFIX}{LAYER}.lora_B.weight"
HEAD_DIM = 2
ONES = np.ones((2, 8), np.float32)
PROGRAM = {
    "w0": LinearLayers(inputs=8, layers=((LAYER, 6), ("model.layers.0.self_attn.k_proj", 4))),
    "w1": LinearLayers(inputs=8, layers=(("model.layers.0.mlp.gate_proj", 5), ("model.layers.0.mlp.up_proj", 5))),
    "w2": LinearLayers(inputs=8, layers=(("a.twin", 4), ("b.twin", 4)), shared=True),
}


def pair(layer: str, inputs: int = 8, outputs: int = 6, rank: int = 2, seed: int = 0) -> Matrices:
    numbers = np.random.default_rng(seed)
    return {
        f"{PREFIX}{layer}.lora_A.weight": numbers.standard_normal((rank, inputs)).astype(np.float32),
        f"{PREFIX}{layer}.lora_B.weight": numbers.standard_normal((outputs, rank)).astype(np.float32),
    }


def test_matrices_go_where_the_layer_is(tmp_path: Path) -> None:
    matrices = pair("model.layers.0.self_attn.k_proj", outputs=4) | pair(LAYER)
    read = read_adapter(write_adapter(tmp_path / "a", matrices, rank=2, lora_alpha=6), PROGRAM, HEAD_DIM)
    ((weight, parts),) = read.weights
    assert weight == "w0"
    assert [first for first, _, _ in parts] == [0, 6]
    assert np.array_equal(parts[0][1], matrices[A])
    assert np.array_equal(parts[0][2], matrices[B] * np.float32(3))
    assert (read.rank, read.modules) == (2, ("model.layers.0.self_attn.k_proj", LAYER))
    assert read.nbytes == 4 * sum(matrix.size for matrix in matrices.values())


def test_a_fused_gate_and_up_become_two(tmp_path: Path) -> None:
    matrices = pair("model.layers.0.mlp.gate_up_proj", outputs=10)
    read = read_adapter(write_adapter(tmp_path / "a", matrices, rank=2, lora_alpha=2), PROGRAM, HEAD_DIM)
    ((_, ((first, a, gate), (second, same, up))),) = read.weights
    assert (first, second) == (0, 5)
    assert np.array_equal(a, same)
    assert np.array_equal(np.concatenate([gate, up]), next(m for n, m in matrices.items() if "lora_B" in n))


def test_the_digest_is_of_what_is_added(tmp_path: Path) -> None:
    def digest(name: str, seed: int = 0, **config: object) -> str:
        return read_adapter(
            write_adapter(tmp_path / name, pair(LAYER, seed=seed), rank=2, **config), PROGRAM, HEAD_DIM
        ).digest

    assert digest("a") == digest("b", base_model_name_or_path="another")
    assert len({digest("a"), digest("c", seed=1), digest("d", lora_alpha=8), digest("e", use_rslora=True)}) == 4


def without(name: str) -> Callable[[Matrices], Matrices]:
    return lambda matrices: {key: matrix for key, matrix in matrices.items() if key != name}


def beside(more: Matrices) -> Callable[[Matrices], Matrices]:
    return lambda matrices: matrices | more


@pytest.mark.parametrize(
    ("config", "change", "said"),
    [
        ({"peft_type": "LOHA"}, None, "an adapter of type LOHA"),
        ({"use_dora": True}, None, "uses use_dora"),
        ({"bias": "all"}, None, "trains biases"),
        ({"init_lora_weights": "pissa"}, None, "init_lora_weights is 'pissa'"),
        ({"r": 3}, None, "is not of rank 3"),
        ({}, without(A), "has one of its two matrices"),
        ({}, without(B), "has one of its two matrices"),
        ({}, lambda _: {}, "holds no weights"),
        ({}, beside(pair("model.layers.9.self_attn.q_proj")), "model does not have .*model.layers.9.self_attn.q_proj"),
        ({}, beside(pair(LAYER, inputs=7)), r"q_proj is \[6, 7\], and the model's \[6, 8\]"),
        ({}, beside(pair(LAYER, outputs=5)), r"q_proj is \[5, 8\], and the model's \[6, 8\]"),
        ({}, beside(pair("a.twin", outputs=4)), "a.twin, whose weight is equal to another layer's"),
        ({}, beside(pair("lm_head")), "changes lm_head.lora_A.weight, lm_head.lora_B.weight"),
        ({}, beside({f"{PREFIX}{LAYER}.weight": np.zeros((6, 8), np.float32)}), "no whole weights"),
        (
            {},
            beside({f"{PREFIX}model.embed_tokens.lora_embedding_A": np.zeros((2, 8), np.float32)}),
            "not of embeddings",
        ),
        ({}, beside({A: np.full((2, 8), np.nan, np.float32)}), "holds infinities or NaN"),
        ({}, beside({A: np.zeros((2, 8), np.int8)}), "of I8, which is not read; save the adapter as F32"),
        ({}, beside({A: np.zeros((2, 8), np.float64)}), "of F64, which is not read; save the adapter as F32"),
        ({}, beside({A: np.zeros(16, np.float32)}), "is not of rank 2"),
        ({}, beside({A.removeprefix(PREFIX): np.zeros((2, 8), np.float32)}), "q_proj.lora_A.weight twice"),
        ({}, beside({A.removesuffix(".weight"): np.zeros((2, 8), np.float32)}), "q_proj.lora_A.* twice"),
        (
            {},
            beside(pair("model.layers.0.mlp.gate_up_proj", outputs=10) | pair("model.layers.0.mlp.up_proj", outputs=5)),
            "up_proj twice, as gate_up_proj, too",
        ),
        ({"rank": 9}, lambda _: pair(LAYER, rank=9), "of rank 9, and no more than 8 to 6 numbers"),
        ({"lora_alpha": 9e8}, lambda _: {A: ONES, B: np.full((6, 2), 1e31, np.float32)}, "too large for float32"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, config: dict[str, object], change: Callable[[Matrices], Matrices] | None, said: str
) -> None:
    matrices = pair(LAYER)
    folder = write_adapter(tmp_path / "a", change(matrices) if change else matrices, **{"rank": 2} | config)
    with pytest.raises(AdapterError, match=said):
        read_adapter(folder, PROGRAM, HEAD_DIM)


def test_sizes_are_looked_at_before_numbers_are_read(tmp_path: Path) -> None:
    """A sparse file of a terabyte says sizes that no memory has."""
    folder = write_adapter(tmp_path / "a", {}, rank=2)
    shapes, header, end = {A: [2, 1 << 37], B: [6, 2]}, {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    with pytest.raises(AdapterError, match="is of another model"):
        read_adapter(folder, PROGRAM, HEAD_DIM)


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"no adapter_config\.json"):
        read_adapter(tmp_path, PROGRAM, HEAD_DIM)
    with pytest.raises(AdapterError, match=r"no such folder"):
        read_adapter(tmp_path / ("long" * 100), PROGRAM, HEAD_DIM)
    folder = write_adapter(tmp_path / "a", pair(LAYER), rank=2)
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(AdapterError, match="damaged"):
        read_adapter(folder, PROGRAM, HEAD_DIM)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(AdapterError, match="adapter_model"):
        read_adapter(folder, PROGRAM, HEAD_DIM)


class Program:
    """Logits of an exported model after each of some tokens."""

    def __init__(self, folder: Path) -> None:
        self.linears = read_model_folder(folder).manifest.linears
        self.session = open_session(read_model_folder(folder), capacity=256, kv_dtype="fp32")

    def logits(self, tokens: list[int], adapter: int = 0) -> np.ndarray[Any, Any]:
        engine = Engine(
            self.session,
            self.session.cache,
            token_bytes=[b"x"] * VOCAB_SIZE,
            eos_ids=[],
            special_ids=[],
            max_batch_tokens=64,
            max_branches=4,
        )
        branch, _ = engine.create(None, adapter)
        rows = []
        for token in tokens:
            for job in (engine.extend(branch, [token]), None):
                wanted = engine.logits(branch) if job is None else job
                while not (finished := [each for each in engine.step().finished if each.job == wanted]):
                    pass
                row = finished[0].logits
            rows.append(np.array(row))
        engine.close(branch)
        return np.array(rows)


TARGETS = {"phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}
SEPARATE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    ("kind", "quant"),
    [("llama", "q8"), ("qwen2", "q8"), ("gemma3", "q8"), ("phi3", "q8"), ("llama", "8da8w"), ("phi3", "8da8w")],
)
def test_an_adapter_changes_logits_as_in_peft(
    tmp_path: Path, tiny_hf_folder: Any, tiny_exported_folder: Any, kind: str, quant: str
) -> None:
    """8 bits of weights and activations leave 5% of the change to chance; a layer in another's place leaves none."""
    tokens = np.random.default_rng(0).integers(0, VOCAB_SIZE, 20).tolist()
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_hf_folder(kind)).float().eval()
    torch.manual_seed(1)

    def of_torch(net: Any) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            return net(torch.tensor([tokens])).logits[0].numpy()  # type: ignore[no-any-return]

    before = of_torch(model)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=TARGETS.get(kind, SEPARATE), init_lora_weights=False
    )
    wrapped = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.3)
    wrapped.save_pretrained(str(tmp_path))
    want = of_torch(wrapped) - before

    program = Program(tiny_exported_folder(kind, quant=quant))
    adapter = program.session.add_adapter(read_adapter(tmp_path, program.linears, HEAD_DIM).weights)
    got = program.logits(tokens, adapter) - program.logits(tokens)
    assert np.linalg.norm(want) > 0.2 * np.linalg.norm(before)
    assert np.linalg.norm(got - want) < 0.09 * np.linalg.norm(want)


def test_matrices_of_zeros_change_no_bit(tmp_path: Path, tiny_exported_folder: Any) -> None:
    folder = tiny_exported_folder("llama", quant="q8")
    program = Program(folder)
    tokens = list(range(40, 60))
    zeros = {name: matrix * (0 if "lora_B" in name else 1) for name, matrix in random_matrices(folder, 1).items()}
    nothing = program.session.add_adapter(
        read_adapter(write_adapter(tmp_path / "a", zeros), program.linears, HEAD_DIM).weights
    )
    some = program.session.add_adapter(
        read_adapter(random_adapter(folder, tmp_path / "b", 1), program.linears, HEAD_DIM).weights
    )
    before = program.logits(tokens)
    assert np.array_equal(program.logits(tokens, nothing), before)
    assert not np.array_equal(program.logits(tokens, some), before)
    assert np.array_equal(program.logits(tokens), before)
