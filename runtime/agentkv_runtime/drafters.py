"""Drafters that need no model, and what is known of the target when one is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv_runtime._core import Drafter, PromptLookup, PythonDrafter

__all__ = ["DraftTarget", "Drafter", "prompt_lookup", "python_drafter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTarget:
    """The open model that is drafted for.

    Attributes:
        path: its folder: of a model that was exported, or of a Hugging Face model on the torch backend.
        vocab_size: columns of its logits.
        feature_dim: floats per row of the features it gives out; 0 for none.
        capacity: cells of its cache.
        kv_dtype: of its keys and values.
    """

    path: Path
    vocab_size: int
    feature_dim: int
    capacity: int
    kv_dtype: str


def prompt_lookup(*, max_ngram: int, min_ngram: int, max_nodes: int, width: int) -> Drafter:
    """Continues a branch as text in the engine's branches went on before. Raises `_core.InvalidDrafter`."""
    return PromptLookup(max_ngram=max_ngram, min_ngram=min_ngram, max_nodes=max_nodes, width=width)


def python_drafter(strategy: Any, target: DraftTarget) -> Drafter:
    """Asks a Python object with `propose` and, where it has one, `observe`."""
    return PythonDrafter(strategy, target.vocab_size)
