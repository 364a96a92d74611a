"""Ollama's models: a manifest per name, and files named by digest.

manifests/<registry>/<namespace>/<model>/<tag>   JSON: layers, of which one is the model
blobs/sha256-<digest>                            what a layer is
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentkv_runtime.errors import StoreError
from agentkv_runtime.folder.small_files import read_object
from agentkv_runtime.store.found.files import folder_of, listed_folder, measured
from agentkv_runtime.store.found.model import Found, Unusable

__all__ = ["Ollama"]

_REGISTRY, _NAMESPACE = "registry.ollama.ai", "library"  # those that names leave out
_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of Ollama as a service on Linux
_MODEL = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_LEVELS = 4  # of folders above a manifest: no link leads further down


class Ollama:
    """Ollama's store. Models are named `qwen3:0.6b`, `someone/model:tag`, or `hf.co/owner/repo:tag`."""

    program = "Ollama"
    default_tag = ":latest"

    def models(self) -> Iterator[Found | Unusable]:
        """Yields one model per manifest."""
        roots = [folder_of("OLLAMA_MODELS", ".ollama", "models")]
        if not os.environ.get("OLLAMA_MODELS"):
            roots.append(_SERVICE)
        for root in roots:
            if root is not None:
                yield from _below(root, root / "manifests", ())


def _below(root: Path, folder: Path, above: tuple[str, ...]) -> Iterator[Found | Unusable]:
    for path in listed_folder(folder):
        if isinstance(path, Unusable):
            yield path
        elif path.name.startswith("."):
            continue
        elif len(above) == _LEVELS - 1:
            yield _model(root, path, _name(above, path.name))
        elif path.is_dir():
            yield from _below(root, path, (*above, path.name))


def _name(above: tuple[str, ...], tag: str) -> str:
    registry, namespace, model = above
    parts = [] if registry == _REGISTRY else [registry]
    if parts or namespace != _NAMESPACE:
        parts.append(namespace)
    return "/".join([*parts, model]) + f":{tag}"


def _model(root: Path, manifest: Path, name: str) -> Found | Unusable:
    try:
        layers = read_object(manifest, StoreError).get("layers")
    except StoreError as error:
        return Unusable(name, f"its manifest {str(error).removeprefix(f'{manifest}: ')}")
    digests = [_digest(layer) for layer in layers if _is_model(layer)] if isinstance(layers, list) else []
    if not digests:
        return Unusable(name, "its manifest names no file of a model")
    if None in digests:
        return Unusable(name, "its manifest names a file by no SHA-256")
    if len(digests) > 1:
        return Unusable(name, "its manifest names more than one file of a model")
    return measured(name, [root / "blobs" / f"sha256-{digests[0]}"])


def _is_model(layer: Any) -> bool:
    return isinstance(layer, dict) and layer.get("mediaType") == _MODEL


def _digest(layer: dict[str, Any]) -> str | None:
    match = _DIGEST.fullmatch(str(layer.get("digest")))
    return match[1] if match else None
