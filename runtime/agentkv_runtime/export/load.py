"""Reading a Hugging Face folder for export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from agentkv_runtime.errors import ExportError

__all__ = ["load_model"]


def load_model(src: str | Path) -> PreTrainedModel:
    """The causal language model in a local folder, in float32 and for inference.

    Raises ExportError for a folder without config.json, an architecture that transformers does not know or that is no
    causal language model, and weights that are missing or damaged. Nothing is downloaded; no code of the folder runs.
    """
    path = Path(src)
    if not (path / "config.json").is_file():
        raise ExportError(f"{path}: not a Hugging Face folder: it has no config.json. Download the whole model")
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ExportError(f"{path}: transformers cannot read its config.json: {error}") from error
    if config.is_encoder_decoder:
        raise ExportError(f"{path}: {config.model_type} is an encoder-decoder; agentkv runs decoder-only models")
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
