"""What a folder holds that is not the model that was looked for, in words of error messages."""

from __future__ import annotations

import re
from pathlib import Path

from agentkv_runtime.folder.printable import printable

__all__ = ["config_missing", "files_to_choose", "tokenizer_missing"]

_BESIDE_A_MODEL = re.compile(r"mmproj|-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
"""In names of GGUF files that are no model: projectors of pictures, and later parts of a model."""
_OTHER_TOKENIZERS = ("tokenizer.model", "vocab.json", "spiece.model", "tiktoken.model")
_MOST = 8


def files_to_choose(folder: Path) -> str:
    """Names the GGUF files of a folder, of which one is to be given; empty if it has none."""
    names = sorted(path.name for path in folder.glob("*") if path.suffix.lower() == ".gguf" and path.is_file())
    models = [name for name in names if not _BESIDE_A_MODEL.search(name)]
    if not models:
        return ""
    shown = ", ".join(map(printable, models[:_MOST])) + (f" and {len(models) - _MOST} more" if models[_MOST:] else "")
    holds = f"a folder with {len(models)} GGUF files" if len(models) > 1 else "a folder with a GGUF file"
    return f"{holds}: {shown}. Give the file, as {printable(folder / models[0])}"


def config_missing(folder: Path) -> str:
    """Says that a folder has no config.json, and what to do."""
    weights = next((path.name for path in sorted(folder.glob("*.safetensors"))), None)
    if weights is None:
        return "has no config.json. Give the whole folder of a Hugging Face model, or a GGUF file"
    return f"has no config.json, which says what model {printable(weights)} is of. Download the whole model"


def tokenizer_missing(folder: Path) -> str:
    """Says that a folder has no tokenizer.json, and what to do."""
    other = next((name for name in _OTHER_TOKENIZERS if (folder / name).is_file()), None)
    if other is None:
        return "has no tokenizer.json, which running the model needs. Download the whole model, with its tokenizer"
    return (
        f"has no tokenizer.json, and {other} is not read. Write one with transformers: "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )
