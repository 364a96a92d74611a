"""Model folders without a model: enough for what reads a folder but loads no program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentkv_runtime.folder.manifest import Manifest, write_manifest
from agentkv_runtime.folder.model_folder import file_fingerprint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def write_folder(path: Path, program: bytes = b"program", **changes: Any) -> Path:
    """A folder whose manifest fits its files, except for the fields in `changes`."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.pte").write_bytes(program)
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    facts: dict[str, Any] = {
        "source": "tiny",
        "model_type": "llama",
        "fingerprint": file_fingerprint(path / "model.pte"),
        "model_bytes": len(program),
        "vocab_size": 256,
        "max_tokens": 64,
        "max_logits": 8,
        "n_layers": 2,
        "n_kv_heads": 2,
        "head_dim": 16,
        "windows": (0, 8),
    }
    write_manifest(Manifest.model_construct(**{**facts, **changes}), path / "agentkv.json")
    return path
