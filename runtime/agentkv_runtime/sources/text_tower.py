"""The language model of a vision-language checkpoint, as a model of its own.

For text alone it computes the same as the whole model, as Qwen's three-dimensional rotary embeddings then equal
one-dimensional ones.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentkv_runtime.errors import ExportError
from agentkv_runtime.hf.blame import first_line
from agentkv_runtime.hf.load import read_config
from agentkv_runtime.hf.weights import FolderWeights
from agentkv_runtime.sources.placing import place_weights
from agentkv_runtime.text.chat_templates import TEMPLATE_FILES

__all__ = ["TowerWeights", "load_text_tower", "write_tower_description"]

_ALONE = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Model types of language models in transformers, by their type within a vision-language model."""
_PREFIXES = ((r"^(model\.)?language_model\.(?=lm_head)", ""), (r"^(model\.)?language_model\.(model\.)?", "model."))
_COMPANIONS = ("tokenizer*.json", "generation_config.json", *TEMPLATE_FILES)


def write_tower_description(src: Path, folder: Path) -> bool:
    """Writes config and tokenizer of the language model in `src` to `folder`; returns False for another checkpoint.

    Raises ExportError for a config that transformers cannot read.
    """
    config = _tower_config(src)
    if config is None:
        return False
    config.save_pretrained(folder)
    for path in (path for pattern in _COMPANIONS for path in src.glob(pattern)):
        copy = folder / path.relative_to(src)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
    return True


def _tower_config(src: Path) -> PretrainedConfig | None:
    try:
        whole: Any = AutoConfig.from_pretrained(src, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each config class checks its fields in its own way
        raise ExportError(f"{src}: transformers cannot read its config.json: {first_line(error)}") from error
    text = getattr(whole, "text_config", None)
    if text is None or getattr(whole, "vision_config", None) is None:
        return None
    if whole.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:  # which are loaded as they are
        return None
    kind = _ALONE.get(text.model_type, text.model_type)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return None
    facts = {key: value for key, value in text.to_dict().items() if key not in ("model_type", "architectures", "dtype")}
    facts["tie_word_embeddings"] = whole.tie_word_embeddings
    config: PretrainedConfig = AutoConfig.for_model(kind, **facts)
    return config


class TowerWeights:
    """A `Weights` over the tensors of a checkpoint that belong to its language model."""

    def __init__(self, src: Path) -> None:
        """Opens the files. Raises ExportError if they cannot be read."""
        try:
            self._whole = FolderWeights(src)
        except (OSError, SafetensorError) as error:
            raise ExportError(f"{src}: its weights cannot be read: {error}. Download the whole model") from error
        self._stored = {_own_name(name): name for name in self._whole.names()}

    def names(self) -> Collection[str]:
        """Names of all tensors; the language model's without the prefix that the checkpoint gives them."""
        return self._stored.keys()

    def load(self, name: str) -> torch.Tensor:
        """A tensor as stored."""
        return self._whole.load(self._stored[name])


def load_text_tower(src: Path, described: Path) -> PreTrainedModel:
    """Loads the float32 language model of the checkpoint `src`; its config is in `described`. Raises ExportError."""
    config = read_config(described)
    config._attn_implementation = "eager"
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing = place_weights(TowerWeights(src), model)
    if missing:
        raise ExportError(
            f"{src}: {len(missing)} weights of its language model are missing ({', '.join(missing[:3])}). Download the "
            "whole model"
        )
    model.eval()
    return model


def _own_name(stored: str) -> str:
    for pattern, prefix in _PREFIXES:
        if re.match(pattern, stored):
            return re.sub(pattern, prefix, stored)
    return stored
