"""One random checkpoint in the format of each: a Hugging Face folder, a model folder of ours, a GGUF file."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from .shapes import Shape


@dataclass(frozen=True)
class Models:
    """Where the three lie."""

    checkpoint: Path
    folder: Path
    gguf: Path


def made_models(shape: Shape, root: Path, tools: Path, console: Console) -> Models:
    """Those below `root`; what is missing is made, with torch."""
    models = Models(root / "checkpoint", root / "agentkv", root / "q4_0.gguf")
    root.mkdir(parents=True, exist_ok=True)
    if not (models.checkpoint / "tokenizer.json").is_file():
        console.print(f"writing a random checkpoint to {models.checkpoint}")
        _write_checkpoint(shape, models.checkpoint)
    if not (models.folder / "agentkv.json").is_file():
        console.print("exporting it for agentkv (8da4w)")
        from agentkv_runtime.export.folder import export_folder
        from agentkv_runtime.export.quiet import quiet_libraries

        with quiet_libraries():
            export_folder(models.checkpoint, models.folder, quant="8da4w")
    if not models.gguf.is_file():
        console.print("converting and quantising it for llama.cpp (Q4_0)")
        half = root / "f16.gguf"
        _write_gguf(shape, models.checkpoint, half)
        subprocess.run([tools / "llama-quantize", half, models.gguf, "Q4_0"], check=True, capture_output=True)
        half.unlink()
    return models


def _vocabulary(shape: Shape) -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    return alphabet + [f"<unused{i}>" for i in range(shape.vocab - len(alphabet))]


def _write_checkpoint(shape: Shape, folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        shape.model_type,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.ffn,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
        max_position_embeddings=shape.positions,
        bos_token_id=None,
        eos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(_vocabulary(shape))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def _write_gguf(shape: Shape, checkpoint: Path, path: Path) -> None:
    """The checkpoint in 16 bits. Rows of q and k keep their order, which random weights do not mind."""
    import gguf
    import torch
    from safetensors.torch import load_file

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[shape.model_type.upper()], shape.layers)
    writer: Any = gguf.GGUFWriter(path, shape.model_type)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    tokens = _vocabulary(shape)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * shape.vocab)
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])  # a vocabulary without any is refused
    for file in sorted(checkpoint.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            dtype = torch.float16 if tensor.ndim > 1 else torch.float32
            writer.add_tensor(names.get_name(name, (".weight",)), tensor.to(dtype).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
