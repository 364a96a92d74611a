"""Reading a Hugging Face folder for export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.attention import UnsupportedModelError

__all__ = ["check_config", "load_model", "read_config"]


def check_config(config: PretrainedConfig) -> None:
    """Raises UnsupportedModelError for a model that is, by its config, no decoder of text alone."""
    name = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{name} is an encoder-decoder; agentkv runs decoder-only models")
    if name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        text = getattr(config, "text_config", None)
        seen = any(getattr(config, f"{sense}_config", None) is not None for sense in ("vision", "audio"))
        if isinstance(text, PretrainedConfig) and seen:
            raise UnsupportedModelError(
                f"{name} is a vision-language or audio checkpoint, which transformers has no causal language model"
                f" for; agentkv runs text models. Export a text-only checkpoint of it ({text.model_type})"
            )
        raise UnsupportedModelError(f"{name} is no causal language model of transformers; agentkv runs only those")


def read_config(path: Path) -> PretrainedConfig:
    """The config of the model in a local folder. Raises ExportError where there is none that agentkv could run."""
    if not (path / "config.json").is_file():
        raise ExportError(f"{path}: not a Hugging Face folder: it has no config.json. Download the whole model")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each config class checks its fields in its own way
        raise ExportError(f"{path}: transformers cannot read its config.json: {error}") from error
    try:
        check_config(config)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
    return config


def load_model(src: str | Path) -> PreTrainedModel:
    """The causal language model in a local folder, in float32 and for inference.

    Raises ExportError for a folder without config.json, an architecture that transformers does not know or that is no
    causal language model, and weights that are missing or damaged. Nothing is downloaded; no code of the folder runs.
    """
    path = Path(src)
    config = read_config(path)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise many kinds; all mean the same here
        raise ExportError(f"{path}: its weights cannot be loaded as {config.model_type}: {error}") from error
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ExportError(f"{path}: {len(missing)} weights are missing ({shown}). Download the whole model")
    model.eval()
    return model
