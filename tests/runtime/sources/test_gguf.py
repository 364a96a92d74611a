"""GGUF files: what is loaded from one computes what its dequantised weights say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export import export_folder
from agentkv_runtime.folder.model_folder import read_tokenizer
from agentkv_runtime.gguf.description import write_description
from agentkv_runtime.sources.gguf import load_gguf
from agentkv_runtime.sources.source import described
from gguf import GGMLQuantizationType as Q
from gguf import GGUFWriter

from tests.models import END_OF_TEXT, TURN_END, tiny_model, tiny_spec, tiny_tokenizer
from tests.runtime.sources.gguf_files import write_gguf

SHAPE: dict[str, Any] = {"hidden": 256, "intermediate": 256, "head_dim": 64}  # blocks of Q4_K are 256 weights long
TOKENS = torch.arange(40).remainder(30)[None] + 3


def tiny(kind: str) -> Any:
    if kind != "gemma3":
        return tiny_model(tiny_spec(kind, tied=True, **SHAPE))
    import transformers

    # What its files do not say is the same for all models: the scale of scores, which layers have windows.
    spec = tiny_spec(kind, layers=6, **SHAPE)
    described = tiny_model(spec).config.to_dict()
    fixed = {"query_pre_attn_scalar": 64, "layer_types": None, "rope_parameters": None}
    config = transformers.Gemma3TextConfig(**{**described, **fixed})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.load_state_dict(tiny_model(spec).state_dict())
    return model


def loaded(path: Path) -> Any:
    with described(path) as words:
        return load_gguf(path, words.folder)


def difference(path: Path, model: Any, kept: dict[str, torch.Tensor]) -> float:
    """The largest one between the logits of a file and those of a model with its weights."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])
        want, got = model(TOKENS).logits, loaded(path)(TOKENS).logits
    assert want.std() > 0.01
    return float((got - want).abs().max())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("qtype", [Q.Q4_0, Q.Q4_K, Q.Q8_0, Q.F16], ids=lambda qtype: qtype.name)
def test_logits_are_those_of_the_dequantised_weights(tmp_path: Path, kind: str, qtype: Q) -> None:
    model = tiny(kind)
    kept = write_gguf(tmp_path / "model.gguf", model, kind, qtype)
    assert difference(tmp_path / "model.gguf", model, kept) < 1e-4


@pytest.mark.parametrize("qtype", [Q.F32, Q.BF16, Q.Q4_1, Q.Q5_0, Q.Q5_1], ids=lambda qtype: qtype.name)
def test_other_types_and_a_head_of_its_own(tmp_path: Path, qtype: Q) -> None:
    model = tiny_model(tiny_spec("llama", tied=False, **SHAPE))
    kept = write_gguf(tmp_path / "model.gguf", model, "llama", qtype)
    assert difference(tmp_path / "model.gguf", model, kept) < 1e-4


def test_llama_3_frequencies_are_found_from_their_factors(tmp_path: Path) -> None:
    import transformers

    spec = tiny_spec("llama", **SHAPE)
    rule = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rule |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = tiny_model(spec).config
    plain = transformers.AutoModelForCausalLM.from_config(config)
    config.rope_parameters = rule
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.rope_freqs = (plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq).numpy()
    kept = write_gguf(tmp_path / "model.gguf", model, "llama", Q.F32)
    assert difference(tmp_path / "model.gguf", model, kept) < 1e-4
    model.rope_freqs = model.rope_freqs**2
    write_gguf(tmp_path / "other.gguf", model, "llama", Q.F32)
    with pytest.raises(UnsupportedModelError, match="another rule than Llama 3"):
        loaded(tmp_path / "other.gguf")


def test_a_file_is_exported_with_the_tokenizer_that_it_holds(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model(tiny_spec("qwen3", layers=1, **SHAPE)), "qwen3", Q.Q8_0)
    folder = export_folder(tmp_path / "tiny.gguf", tmp_path / "out", max_tokens=8, max_logits=4)
    assert (folder.manifest.model_type, folder.manifest.source) == ("qwen3", "tiny.gguf")
    own = tiny_tokenizer()
    text = "The quick brown fox: 12 dogs!\n"
    assert folder.tokenizer.encode(text) == own.encode(text).ids
    assert folder.tokenizer.eos_ids == [own.token_to_id(TURN_END), own.token_to_id(END_OF_TEXT)]
    assert folder.tokenizer.has_chat_template


def test_what_lies_beside_a_file_is_none_of_the_model(tmp_path: Path) -> None:
    path, described = tmp_path / "model.gguf", tmp_path / "described"
    described.mkdir()
    write_gguf(path, tiny_model(tiny_spec("llama", layers=1)), "llama", Q.F32)
    beside = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(beside))
    (tmp_path / "tokenizer.json").write_text("{}")
    write_description(path, described)
    assert read_tokenizer(described).encode("a branch")
    assert not (described / "model.gguf").exists()


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF, but not really")
    with pytest.raises(ExportError, match=r"bad\.gguf: cannot be read as a GGUF file"):
        export_folder(tmp_path / "bad.gguf", tmp_path / "out")
    other = GGUFWriter(tmp_path / "other.gguf", "perceiver")
    other.write_header_to_file()
    other.write_kv_data_to_file()
    other.close()
    with pytest.raises(
        UnsupportedModelError, match=r"GGUF files of perceiver are not read, only those of .*gemma3, .*llama"
    ):
        export_folder(tmp_path / "other.gguf", tmp_path / "out")
    whole = tmp_path / "whole.gguf"
    write_gguf(whole, tiny_model(tiny_spec("llama", layers=1, **SHAPE)), "llama", Q.F32)
    (tmp_path / "cut.gguf").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ExportError, match=r"cut\.gguf: cannot be read as a GGUF file"):
        export_folder(tmp_path / "cut.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
