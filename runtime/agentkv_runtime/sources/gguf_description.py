"""What a GGUF file says about its model, as files of a Hugging Face folder: config, tokenizer, generation config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agentkv_runtime.chat_templates import DEFAULT, write_templates
from agentkv_runtime.ends_of_turn import usual_ends
from agentkv_runtime.errors import ExportError, GGUFError, TokenizerError, UnsupportedModelError
from agentkv_runtime.folder import read_tokenizer
from agentkv_runtime.gguf.metadata import read_metadata
from agentkv_runtime.gguf.tokenizer import write_tokenizer
from agentkv_runtime.hf.blame import first_line
from agentkv_runtime.sources.gguf_reading import open_gguf
from agentkv_runtime.sources.gguf_rope import position_divisor

__all__ = ["ARCHITECTURES", "write_description"]

ARCHITECTURES = ("gemma3", "llama", "qwen2", "qwen3")
"""Whose tensors and settings were compared with transformers'. Mistral's files call themselves llama."""

_ENDS = ("eos", "eot", "eom")  # of what the tokenizer's metadata name
_TEMPLATE = "tokenizer.chat_template"  # the usual one; others are called by this and their name
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def write_description(path: Path, folder: Path) -> None:
    """Writes what exporting reads beside the weights. Raises ExportError for a file that cannot be read so."""
    reader = open_gguf(path)
    try:
        metadata = read_metadata(path)
        _check(path, metadata)
        write_tokenizer(metadata, folder)
        (folder / "model.gguf").symlink_to(path.absolute())  # alone: transformers reads what lies beside it, too
        alone = {"gguf_file": "model.gguf", "local_files_only": True, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(folder, **alone)
        (folder / "model.gguf").unlink()
        if head_dim := metadata.get(f"{metadata['general.architecture']}.attention.key_length"):
            config.head_dim = head_dim
        _scale_rope(path, config, position_divisor(path, metadata), _rope_factors(reader))
        config.save_pretrained(folder)
        write_templates(folder, _templates(metadata))
    except ExportError:
        raise
    except GGUFError as error:
        raise ExportError(str(error)) from error
    except TokenizerError as error:
        raise ExportError(f"{path}: {error}") from error
    except Exception as error:  # of transformers, tokenizers and gguf, in whatever way they fail
        raise ExportError(f"{path}: cannot be read as a GGUF file: {first_line(error)}") from error
    _write_ends(metadata, folder)


def _templates(metadata: dict[str, Any]) -> dict[str, str]:
    named = {key.removeprefix(f"{_TEMPLATE}."): value for key, value in metadata.items() if key.startswith(_TEMPLATE)}
    return {DEFAULT if name == _TEMPLATE else name: template for name, template in named.items()}


def _write_ends(metadata: dict[str, Any], folder: Path) -> None:
    """Writes what ends a generation: what the file says, and what ends a turn wherever it is a token of its own."""
    stated = [metadata[key] for end in _ENDS if (key := f"tokenizer.ggml.{end}_token_id") in metadata]
    ends = dict.fromkeys([*stated, *usual_ends(read_tokenizer(folder).added_ids)])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ends)}) + "\n", encoding="utf-8")


def _check(path: Path, metadata: dict[str, Any]) -> None:
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{path}: GGUF files of {architecture} are not read, only those of {', '.join(ARCHITECTURES)}. Export the "
            "Hugging Face folder that it was made from"
        )
    if metadata.get("split.count", 1) > 1:
        raise UnsupportedModelError(f"{path}: one of several parts. Put them together with llama-gguf-split --merge")


def _rope_factors(reader: GGUFReader) -> torch.Tensor | None:
    return next((torch.tensor(t.data) for t in reader.tensors if t.name == "rope_freqs.weight"), None)


def _scale_rope(path: Path, config: Any, divisor: float, factors: torch.Tensor | None) -> None:
    if factors is not None and divisor != 1:
        raise UnsupportedModelError(
            f"{path}: scales its rotary positions in two ways at once, linear and by factors. Export the Hugging Face "
            "folder that it was made from"
        )
    if factors is not None:
        _take_llama3_rope(path, config, factors)
    elif divisor != 1:
        rules = config.rope_parameters
        # Gemma's windowed layers turn by positions as they are.
        rules.get("full_attention", rules).update(rope_type="linear", factor=divisor)


def _take_llama3_rope(path: Path, config: Any, factors: torch.Tensor) -> None:
    """Llama 3.1 and later: files hold what frequencies are divided by, and configs the rule that it comes from."""
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
