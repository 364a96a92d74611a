"""Checks that a folder's config.json describes a model, and the one that its weights are of. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import read_object
from agentkv_runtime.hf.plain_config import FAMILIES_BY_CLASS
from agentkv_runtime.hf.tensors import open_tensors

__all__ = ["check_config"]

_OF_A_LAYER = re.compile(
    r"(?:(?:model|transformer|backbone|gpt_neox)\.)?(?:layers|h)\.(?P<layer>\d{1,6})\.(?P<rest>.+)"
)
_OF_NO_USE = "rotary_emb.inv_freq"  # in older files, and not in every layer


def check_config(folder: Path) -> None:
    """Raises ExportError, naming the setting and its remedy, for a config that names no type of model, another than its
    own class, or another number of layers than the safetensors files have."""
    path = folder / "config.json"
    config = read_object(path, ExportError)
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ExportError(f"{path}: names no model_type, so nobody knows what model it is. Download the whole model")
    usual = _usual_type(config)
    if usual is not None and kind != usual and kind not in FAMILIES_BY_CLASS.values():
        raise ExportError(
            f"{path}: model_type is {printable(kind[:40])!r}, and its architectures name a model of type {usual!r}. "
            f"Write {usual!r} there, or download config.json again"
        )
    said = config.get("num_hidden_layers")
    if isinstance(said, int) and not isinstance(said, bool):
        stored = _layers(open_tensors(folder), said)
        of_a_family = kind in FAMILIES_BY_CLASS.values()  # others may count two to one in their files
        if stored and (stored > said or (of_a_family and stored < said)):
            raise ExportError(
                f"{path}: num_hidden_layers is {said}, and the weights have {stored} layers. Download the whole model; "
                f"if the weights are whole, write {stored} there"
            )


def _usual_type(config: Mapping[str, Any]) -> str | None:
    """The model type of a family's class in `architectures`; None for other classes."""
    classes = config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else None
    return None if "text_config" in config else FAMILIES_BY_CLASS.get(first) if isinstance(first, str) else None


def _layers(names: Iterable[str], said: int) -> int:
    """The number of layers that weights have, going by their names; 0 if these name none.

    A layer behind the `said` ones counts only if it has the weights of one of these: some models have layers of another
    make there, which predict several tokens at a time.
    """
    layers: dict[int, set[str]] = {}
    for name in names:
        match = _OF_A_LAYER.fullmatch(name)
        if match and not name.endswith(_OF_NO_USE):
            layers.setdefault(int(match["layer"]), set()).add(match["rest"])
    certain = max(said, 1)  # there is a first one, whatever was said
    kinds = [weights for layer, weights in layers.items() if layer < certain]
    return 1 + max((layer for layer, weights in layers.items() if layer < certain or weights in kinds), default=-1)
