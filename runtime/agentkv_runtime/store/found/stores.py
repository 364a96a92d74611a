"""The stores of other programs, by the prefix of a model's name, as in `ollama:qwen3:0.6b`."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from agentkv_runtime.errors import StoreError
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.store.found.hub_cache import HubCache
from agentkv_runtime.store.found.llama_cpp import LlamaCpp
from agentkv_runtime.store.found.lm_studio import LMStudio
from agentkv_runtime.store.found.model import Found, ModelStore
from agentkv_runtime.store.found.ollama import Ollama

__all__ = ["STORES", "find_stored", "is_stored"]

STORES: dict[str, ModelStore] = {
    "ollama": Ollama(),
    "lmstudio": LMStudio(),
    "llama.cpp": LlamaCpp(),
    "hf": HubCache(),
}


def is_stored(name: str) -> bool:
    """Whether a name has the prefix of another program's store."""
    prefix, colon, _ = name.partition(":")
    return bool(colon) and prefix in STORES


def find_stored(name: str) -> Path:
    """The file of a name with such a prefix. Raises StoreError for a model that is missing or unusable."""
    prefix, _, wanted = name.partition(":")
    store = STORES[prefix]
    others = []
    for model in store.models():
        if model.name not in (wanted, wanted + store.default_tag):
            others.append(model.name)
        elif isinstance(model, Found):
            return model.path
        else:
            raise StoreError(f"{printable(name)}: {printable(model.why)}")
    near = [f"{prefix}:{printable(one)}" for one in get_close_matches(wanted, others)]
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise StoreError(
        f"{printable(name)}: {store.program} has no such model here. {hint}See what there is with: agentkv list --found"
    )
