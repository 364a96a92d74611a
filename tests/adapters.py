"""LoRA adapters with random numbers, as peft and llama.cpp write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from agentkv_runtime.folder.model_folder import read_model_folder
from safetensors.numpy import save_file

PREFIX = "base_model.model."
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear", "bias": "none"}


def random_matrices(model: Path, seed: int, rank: int = 4, scale: float = 0.3) -> dict[str, np.ndarray[Any, Any]]:
    """Both matrices of every linear layer of an exported model but its head, by the names that peft gives them."""
    numbers = np.random.default_rng(seed)
    found = {}
    for product in read_model_folder(model).manifest.linears.values():
        for layer, outputs in product.layers:
            if layer == "lm_head":
                continue
            for side, shape in (("A", (rank, product.inputs)), ("B", (outputs, rank))):
                matrix = numbers.standard_normal(shape) * (scale / rank if side == "B" else product.inputs**-0.5)
                found[f"{PREFIX}{layer}.lora_{side}.weight"] = matrix.astype(np.float32)
    return found


def write_adapter(folder: Path, matrices: Mapping[str, np.ndarray[Any, Any]], rank: int = 4, **config: object) -> Path:
    """Writes an adapter; `config` replaces fields of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | {"r": rank, "lora_alpha": 2 * rank} | config))
    save_file(dict(matrices), folder / "adapter_model.safetensors")
    return folder


def random_adapter(model: Path, folder: Path, seed: int, rank: int = 4, scale: float = 0.3, **config: object) -> Path:
    """An adapter with random numbers for every linear layer of an exported model but its head."""
    return write_adapter(folder, random_matrices(model, seed, rank, scale), rank, **config)


PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Tensors of a layer in GGUF files, by transformers' names."""

GGUF_KEYS: dict[str, Any] = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}


def gguf_tensors(matrices: Mapping[str, np.ndarray[Any, Any]], head_dim: int) -> dict[str, np.ndarray[Any, Any]]:
    """Matrices of peft as the converter of a Llama writes them: rotated pairs of queries and keys lie side by side."""
    found = {}
    for name, matrix in matrices.items():
        _, _, layer, module = name.removeprefix(PREFIX).split(".", 3)
        module, _, side = module.removesuffix(".weight").rpartition(".lora_")
        part = PARTS[module]
        if part in ("attn_q", "attn_k") and side == "B":
            matrix = matrix.reshape(-1, 2, head_dim // 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)
        found[f"blk.{layer}.{part}.weight.lora_{side.lower()}"] = matrix
    return found


def write_gguf(
    path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], architecture: str = "llama", **keys: object
) -> Path:
    """Writes a GGUF file of an adapter. `keys` replace those of a plain one, `__` for dots; None leaves one out."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (GGUF_KEYS | {key.replace("__", "."): value for key, value in keys.items()}).items():
        if isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_string(key, str(value))
    for name, matrix in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
