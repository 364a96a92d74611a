"""Random small models: what is written without torch computes what transformers computes with the same weights.

The weights are those of the program's blocks, so that only activations of 8 bits are between the two.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime._core import unpack_blocks
from agentkv_runtime.export import export_folder
from agentkv_runtime.export.direct.decoder import HEAD
from agentkv_runtime.export.first_run import model_logits
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.hf.load import load_model
from agentkv_runtime.programs import open_session

from tests.models import write_tokenizer
from tests.runtime.direct.random_models import random_config, random_model
from tests.runtime.direct.test_folders import decoder_of

_BFLOAT16 = 30  # GGUF's id
LENGTH = 24
MOST_ERROR = 0.05
"""Of the logits, beside their norm: rounding activations to 8 bits makes a hundredth or two."""


def written_model(place: Path, seed: int) -> tuple[Path, dict[str, Any], str]:
    """A folder with a random model, its config, and how it shall be quantised."""
    rng = random.Random(seed)
    config, quant = random_config(rng), rng.choice(("q4", "q5", "q6", "q8"))
    dtype, shards = rng.choice((torch.float32, torch.bfloat16, torch.float16)), rng.choice(("1GB", "60KB"))
    random_model(config, seed).to(dtype).save_pretrained(place, max_shard_size=shards)
    write_tokenizer(place)
    return place, config, quant


def reference(folder: Path, quant: str, tokens: list[int]) -> np.ndarray:
    """Transformers' logits with the weights that the blocks of the program hold."""
    model = load_model(folder)
    with torch.no_grad():
        for name, blocks in decoder_of(folder, quant).layers.items():
            if name == HEAD and model.config.tie_word_embeddings:
                continue
            rows = blocks.rows()[:]
            numbers = (
                (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
                if blocks.type == _BFLOAT16
                else unpack_blocks(np.ascontiguousarray(rows), blocks.type)
            )
            weight_of(model, name).copy_(torch.from_numpy(np.ascontiguousarray(numbers)))
    return model_logits(model, tokens)


def weight_of(model: Any, name: str) -> torch.Tensor:
    """Of a layer of the program. Phi-3 keeps gate and up in one matrix, one behind the other."""
    parent, _, leaf = name.rpartition(".")
    module = model.get_submodule(parent)
    if hasattr(module, leaf):
        weight: torch.Tensor = getattr(module, leaf).weight
        return weight
    gate, up = module.gate_up_proj.weight.chunk(2)
    return {"gate_proj": gate, "up_proj": up}[leaf]  # type: ignore[no-any-return]


def computed(folder: Path, tokens: list[int]) -> np.ndarray:
    """What the exported program gives after each token."""
    session = open_session(read_model_folder(folder), capacity=len(tokens), kv_dtype="fp32", verify=False)
    session.cache.begin_step([0] * len(tokens))
    logits = session.forward(np.array(tokens), np.arange(len(tokens)), np.arange(len(tokens)))
    session.cache.commit_step()
    return logits


def error_of(seed: int, place: Path) -> float:
    """How far the logits of a random model are off, beside their norm."""
    source, config, quant = written_model(place / f"source-{seed}", seed)
    out = export_folder(source, place / f"out-{seed}", quant=quant, recipe="fixed", max_tokens=32, max_logits=32)
    assert out.manifest.exported_with.keys() == {"agentkv-sdk"}, config
    tokens = np.random.default_rng(seed).integers(0, config["vocab_size"], LENGTH).tolist()
    want = reference(source, quant, tokens)
    off = float(np.linalg.norm(computed(out.path, tokens) - want) / np.linalg.norm(want))
    print(json.dumps({"seed": seed, "kind": config["model_type"], "quant": quant, "off": round(off, 4)}))
    return off


@pytest.mark.parametrize("seed", range(8))
def test_a_random_model_computes_what_transformers_computes(seed: int, tmp_path: Path) -> None:
    assert error_of(seed, tmp_path) < MOST_ERROR


@pytest.mark.soak
def test_many_random_models(tmp_path: Path) -> None:
    for seed in range(int(os.environ.get("AGENTKV_SOAK", "200"))):
        assert error_of(seed, tmp_path) < MOST_ERROR, seed
