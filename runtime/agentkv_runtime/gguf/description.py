"""Writes a GGUF file's metadata as the files of a Hugging Face folder. Needs neither torch nor transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentkv_runtime.errors import ExportError, GGUFError, TokenizerError
from agentkv_runtime.gguf.architectures import Description, describe
from agentkv_runtime.gguf.file import open_file
from agentkv_runtime.gguf.tokenizer import write_tokenizer
from agentkv_runtime.text.added_tokens import AddedTokens
from agentkv_runtime.text.chat_templates import DEFAULT, write_templates
from agentkv_runtime.text.ends_of_turn import usual_ends

__all__ = ["write_description"]

_ENDS = ("eos", "eot", "eom")  # of what the tokenizer's metadata name
_TEMPLATE = "tokenizer.chat_template"  # the usual one; others are called by this and their name


def write_description(path: Path, folder: Path) -> tuple[Description, Tokenizer]:
    """Writes config, tokenizer, chat templates and generation config to `folder`; returns description and tokenizer.

    Raises ExportError for a file that cannot be described.
    """
    try:
        file = open_file(path)
        description = describe(file)
        tokenizer = write_tokenizer(file.metadata, folder)
    except GGUFError as error:
        raise ExportError(str(error)) from error
    except TokenizerError as error:
        raise ExportError(f"{path}: {error}") from error
    (folder / "config.json").write_text(json.dumps(description.config, indent=2) + "\n", encoding="utf-8")
    write_templates(folder, _templates(path, file.metadata))
    _write_ends(file.metadata, AddedTokens(tokenizer).ids, folder)
    return description, tokenizer


def _templates(path: Path, metadata: dict[str, Any]) -> dict[str, str]:
    named = {key.removeprefix(f"{_TEMPLATE}."): value for key, value in metadata.items() if key.startswith(_TEMPLATE)}
    named.pop(f"{_TEMPLATE}s", None)  # the list of their names
    wrong = next((name for name, template in named.items() if not isinstance(template, str)), None)
    if wrong is not None:
        raise ExportError(f"{path}: the chat template {wrong!r:.60} is no text. Convert the model again")
    return {DEFAULT if name == _TEMPLATE else name: template for name, template in named.items()}


def _write_ends(metadata: dict[str, Any], added: dict[str, int], folder: Path) -> None:
    """Writes the ids that end a generation: those the file names, and known end-of-turn tokens of the vocabulary."""
    stated = [metadata[key] for end in _ENDS if (key := f"tokenizer.ggml.{end}_token_id") in metadata]
    ends = dict.fromkeys([*stated, *usual_ends(added)])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ends)}) + "\n", encoding="utf-8")
