"""LoRA adapters with random numbers, as peft writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
