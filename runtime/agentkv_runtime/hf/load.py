"""Reading a Hugging Face folder: config, with checks, and model."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.folder.contents import config_missing
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import read_object
from agentkv_runtime.hf.blame import first_line
from agentkv_runtime.hf.config_check import check_config
from agentkv_runtime.hf.streaming import streamed_model
from agentkv_runtime.hf.weight_files import check_index
from agentkv_runtime.hf.weights import FolderWeights

__all__ = ["load_model", "read_config", "stream_model"]


def _refusal(config: PretrainedConfig) -> str | None:
    """The reason why a config is not one of a text decoder; None if it is."""
    name = config.model_type
    if config.is_encoder_decoder:
        return f"{name} is an encoder-decoder; agentkv runs decoder-only models"
    if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return None
    senses = [sense for sense in ("vision", "audio") if getattr(config, f"{sense}_config", None) is not None]
    if not senses:
        return f"{name} is no causal language model; agentkv runs only those that transformers knows as such"
    kind = "vision-language" if "vision" in senses else "audio"
    return (
        f"{name} is a {kind} checkpoint, which transformers loads as no causal language model; agentkv runs text models"
    )


def read_config(path: Path) -> PretrainedConfig:
    """Reads the config of a local folder. Raises ExportError without one, or for a model that agentkv cannot run."""
    if not (path / "config.json").is_file():
        raise ExportError(f"{path}: not a Hugging Face folder: it {config_missing(path)}")
    check_config(path)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each config class checks its fields in its own way
        raise ExportError(_unread(path / "config.json", error)) from error
    if (refusal := _refusal(config)) is not None:
        raise UnsupportedModelError(f"{path}: {refusal}")
    return config


def _unread(path: Path, error: Exception) -> str:
    """Says why transformers could not read a config."""
    kind = read_object(path, ExportError)["model_type"]
    if kind in CONFIG_MAPPING:
        return f"{path}: transformers cannot read it: {error}"
    near = get_close_matches(kind, list(CONFIG_MAPPING.keys()))
    hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
    return (
        f"{path}: model_type is {printable(kind[:40])!r}, which transformers {transformers.__version__} does not know. "
        f"{hint}For a newer model: pip install --upgrade transformers"
    )


def load_model(src: str | Path, dtype: torch.dtype | None = torch.float32) -> PreTrainedModel:
    """Loads the causal language model of a local folder for inference; a `dtype` of None is the checkpoint's own.

    Raises ExportError for a folder without config.json, an architecture that transformers does not know or that is no
    causal language model, and weights that are missing or damaged. Nothing is downloaded; no code of the folder runs.
    """
    path = Path(src)
    config = read_config(path)
    check_index(path)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype or config.dtype or torch.float32,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise many kinds; all mean the same here
        raise ExportError(
            f"{path}: its weights cannot be loaded as {config.model_type}: {first_line(error)}"
        ) from error
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ExportError(f"{path}: {len(missing)} weights are missing ({shown}). Download the whole model")
    model.eval()
    return model


def stream_model(src: str | Path) -> PreTrainedModel | None:
    """Loads the float32 model of a local folder with deferred matrices (see `streamed_model`).

    Returns None if its files are no safetensors under transformers' names; use `load_model` for those. Raises
    ExportError as `read_config` does.
    """
    path = Path(src)
    config = read_config(path)
    try:
        return streamed_model(config, FolderWeights(path))
    except Exception:  # a damaged file, a model that cannot be made without weights
        return None
