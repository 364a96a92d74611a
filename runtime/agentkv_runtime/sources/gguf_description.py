"""What a GGUF file says about its model, as files of a Hugging Face folder: config, tokenizer, generation config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from transformers import AutoConfig
from transformers.integrations.gguf.reader import read_gguf_metadata
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agentkv_runtime.errors import ExportError, GGUFError, TokenizerError, UnsupportedModelError
from agentkv_runtime.gguf.metadata import read_metadata
from agentkv_runtime.gguf.tokenizer import write_tokenizer
from agentkv_runtime.hf.blame import first_line

__all__ = ["ARCHITECTURES", "write_description"]

ARCHITECTURES = ("gemma3", "llama", "qwen2", "qwen3")
"""Whose tensors and settings were compared with transformers'. Mistral's files call themselves llama."""

_ENDS = ("eos", "eot", "eom")  # of what the tokenizer's metadata name
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def write_description(path: Path, folder: Path) -> None:
    """Writes what exporting reads beside the weights. Raises ExportError for a file that cannot be read so."""
    try:
        metadata = read_metadata(path)
        _, tensors = read_gguf_metadata(str(path))
        _check(path, metadata)
        write_tokenizer(metadata, folder)
        (folder / "model.gguf").symlink_to(path.absolute())  # alone: transformers reads what lies beside it, too
        alone = {"gguf_file": "model.gguf", "local_files_only": True, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(folder, **alone)
        (folder / "model.gguf").unlink()
        if head_dim := metadata.get(f"{metadata['general.architecture']}.attention.key_length"):
            config.head_dim = head_dim
        if "rope_freqs.weight" in tensors:
            _take_llama3_rope(path, config)
        config.save_pretrained(folder)
    except ExportError:
        raise
    except GGUFError as error:
        raise ExportError(str(error)) from error
    except TokenizerError as error:
        raise ExportError(f"{path}: {error}") from error
    except Exception as error:  # of transformers, tokenizers and gguf, in whatever way they fail
        raise ExportError(f"{path}: cannot be read as a GGUF file: {first_line(error)}") from error
    ends = [metadata[key] for end in _ENDS if (key := f"tokenizer.ggml.{end}_token_id") in metadata]
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": list(dict.fromkeys(ends))}) + "\n", encoding="utf-8"
    )


def _check(path: Path, metadata: dict[str, Any]) -> None:
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: GGUF files of {architecture} are not read, only those of {', '.join(ARCHITECTURES)}. Export the "
            "Hugging Face folder that it was made from"
        )
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModelError(
            f"{path}: scales its rotary embedding ({scaling}), which is not read from GGUF files. Export the Hugging "
            "Face folder that it was made from"
        )
    if metadata.get("split.count", 1) > 1:
        raise UnsupportedModelError(f"{path}: one of several parts. Put them together with llama-gguf-split --merge")


def _take_llama3_rope(path: Path, config: Any) -> None:
    """Llama 3.1 and later: files hold what frequencies are divided by, and configs the rule that it comes from."""
    factors = next(torch.tensor(t.data) for t in GGUFReader(path).tensors if t.name == "rope_freqs.weight")
    theta = config.rope_parameters["rope_theta"]
    plain = theta ** -(torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    config.rope_parameters = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": float(factors.max()),
        **_LLAMA3,
    }
    ruled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if not torch.allclose(ruled, plain / factors, rtol=1e-4, atol=0):
        raise UnsupportedModelError(
            f"{path}: divides its rotary frequencies by another rule than Llama 3's. Export the Hugging Face folder "
            "that it was made from"
        )
