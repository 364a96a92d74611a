"""Folders whose weights become blocks of their own: programs beside the float32 model, whatever its layers are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkv_runtime.export import export_folder
from agentkv_runtime.export.blocks.importance import measure_importance
from agentkv_runtime.export.quantization import EMBEDDING
from agentkv_runtime.hf.load import load_model
from agentkv_runtime.programs import load_program
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.conftest import FolderFactory
from tests.driver import lost, native_driver
from tests.models import KINDS
from tests.rows import one_in
from tests.runtime.sources.gguf_files import TOKENS


def logits_of(path: Path) -> Any:
    return native_driver(load_program(path / "model.pte"), capacity=64).feed(0, TOKENS, (5, 1, 20))


@pytest.mark.parametrize("kind", one_in(12, [kind for kind in KINDS if kind not in ("llama", "smollm")]))
def test_every_kind_of_model_comes_out_as_it_was(kind: str, tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = tiny_hf_folder(kind)
    with torch.no_grad():
        want = load_model(source)(torch.tensor(TOKENS)[None], use_cache=False).logits[0].numpy()
    folder = export_folder(source, tmp_path / "out", quant="q8", max_tokens=64, max_logits=64)
    assert folder.manifest.quantization == "q8"
    assert set(folder.manifest.weight_types.values()) <= {"q8_0", "bf16"}
    assert folder.manifest.weight_errors.keys() >= folder.manifest.weight_types.keys() - {"lm_head"}
    assert lost(logits_of(folder.path), want) < 0.2  # recurrent layers carry what rounds otherwise


def test_weights_of_zeros_are_exported_in_whatever_shapes(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = Path(shutil.copytree(tiny_hf_folder("llama"), tmp_path / "source"))
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if "mlp" in name:
            weight.zero_()
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    folder = export_folder(source, tmp_path / "out", quant="q8", max_tokens=64, max_logits=64)
    with torch.no_grad():
        want = load_model(source)(torch.tensor(TOKENS)[None], use_cache=False).logits[0].numpy()
    assert lost(logits_of(folder.path), want) < 0.05


def test_embeddings_that_a_model_changes_in_place_are_measured() -> None:
    net = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    ).eval()
    net.model.rotary_emb.register_forward_pre_hook(lambda _layer, inputs: (inputs[0].mul_(2.0), *inputs[1:]))
    assert EMBEDDING in measure_importance(net, torch.arange(1, 33)[None]).outputs


def test_fewer_bits_take_fewer_bytes_and_lose_more(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = tiny_hf_folder("llama", hidden=256, intermediate=512)
    with torch.no_grad():
        want = load_model(source)(torch.tensor(TOKENS)[None], use_cache=False).logits[0].numpy()
    sizes, losses = [], []
    for quant in ("q4", "q5", "q6", "q8"):
        folder = export_folder(source, tmp_path / quant, quant=quant, max_tokens=64, max_logits=64)  # type: ignore[arg-type]
        sizes.append(sum(folder.manifest.weight_bytes.values()))
        losses.append(lost(logits_of(folder.path), want))
    assert sizes == sorted(sizes)
    assert losses == sorted(losses, reverse=True)


def test_a_text_of_ones_own_is_what_is_calibrated_on(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source, text = tiny_hf_folder("llama", hidden=256, intermediate=512), tmp_path / "text"
    text.write_text("the quick brown fox " * 400)
    own = export_folder(source, tmp_path / "own", quant="q4", calibrate=text, max_tokens=64, max_logits=64)
    usual = export_folder(source, tmp_path / "usual", quant="q4", recipe="measured", max_tokens=64, max_logits=64)
    again = export_folder(source, tmp_path / "again", quant="q4", recipe="measured", max_tokens=64, max_logits=64)
    assert own.manifest.fingerprint != usual.manifest.fingerprint == again.manifest.fingerprint
