"""Reading and checking the `adapter_config.json` of a LoRA adapter. Imports no torch."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import regex

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.folder.small_files import read_object

__all__ = ["INSTEAD", "PAIR", "PREFIX", "rank_of", "read_adapter_config", "scale_of"]

PREFIX = "base_model.model."
"""What peft puts before the names of modules."""
PAIR = re.compile(r"(?P<module>.+)\.lora_(?P<kind>embedding_)?(?P<side>[AB])(\.weight)?")
"""Name of one of the two matrices for a module."""
INSTEAD = "Merge it with peft (merge_and_unload), save that model and export it"

_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base weight unchanged."""
_MOST = 1e9  # of ranks and alphas
_PATTERN_S = 1.0  # for one pattern, whose matching may take exponential time


def read_adapter_config(adapter: Path) -> dict[str, Any]:
    """Reads `adapter_config.json` and checks that the adapter is one of plain LoRA.

    Raises ExportError for a folder without an adapter or with wrong numbers, UnsupportedModelError for adapters of
    other kinds than LoRA.
    """
    if not os.path.exists(adapter):  # False also where it cannot be looked at
        raise ExportError(f"{adapter}: no such folder. Give the folder that peft wrote")
    if not os.path.isfile(adapter / "adapter_config.json"):
        raise ExportError(f"{adapter}: no adapter: it has no adapter_config.json. Give the folder that peft wrote")
    config = read_object(adapter / "adapter_config.json", ExportError)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModelError(f"{adapter}: an adapter of type {kind}; only LORA is read. {INSTEAD}")
    more = [key for key in ("use_dora", "lora_bias", "alora_invocation_tokens", "use_qalora") if config.get(key)]
    if more:
        raise UnsupportedModelError(f"{adapter}: uses {', '.join(more)}, which is not read here. {INSTEAD}")
    begun = config.get("init_lora_weights", True)
    if begun not in _BEGINNINGS:
        raise UnsupportedModelError(
            f"{adapter}: init_lora_weights is {begun!r}, which changes the weights that it is added to. {INSTEAD}"
        )
    for key, patterns in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
        more_values = config.get(patterns) or {}
        if not isinstance(more_values, dict):
            raise ExportError(f"{adapter}: adapter_config.json says {patterns}={more_values!r}, which is no object")
        for value in (config.get(key), *more_values.values()):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST:
                raise ExportError(
                    f"{adapter}: adapter_config.json says {key}={str(value)[:20]}, which is no positive number below "
                    f"{_MOST:g}"
                )
        for pattern in more_values:
            try:
                re.compile(pattern)
                regex.compile(pattern)
            except (re.error, regex.error, RecursionError, OverflowError) as error:
                raise ExportError(f"{adapter}: {patterns} has {pattern!r}, which is no pattern: {error}") from error
    return config


def rank_of(config: dict[str, Any], module: str) -> float:
    """The rank of a module's pair of matrices."""
    return _patterned(config.get("rank_pattern"), module, config["r"])


def scale_of(config: dict[str, Any], module: str) -> float:
    """The factor of a module's change."""
    rank = rank_of(config, module)
    alpha = _patterned(config.get("alpha_pattern"), module, config["lora_alpha"])
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _patterned(patterns: dict[str, float] | None, module: str, usual: float) -> float:
    """The value of the first pattern that matches the end of a module's name, as in peft; `usual` if none does."""
    for pattern, value in (patterns or {}).items():
        try:
            found = regex.match(rf"(.*\.)?({pattern})$", module, timeout=_PATTERN_S)
        except TimeoutError as error:
            raise ExportError(f"adapter_config.json: the pattern {pattern!r} takes too long to match") from error
        if found:
            return value
    return usual
