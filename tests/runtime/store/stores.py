"""Stores of other programs, made in a folder that stands for the user's own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

GGUF = b"GGUF" + bytes(60)
MODEL_LAYER = "application/vnd.ollama.image.model"


def write(path: Path, data: bytes = GGUF) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def ollama_model(home: Path, name: str, data: bytes = GGUF, *, registry: str = "registry.ollama.ai/library") -> Path:
    """A model as `ollama pull` leaves it; returns its blob."""
    digest = hashlib.sha256(data).hexdigest()
    blob = write(home / f".ollama/models/blobs/sha256-{digest}", data)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64, "size": 3},
        {"mediaType": MODEL_LAYER, "digest": f"sha256:{digest}", "size": len(data)},
    ]
    ollama_manifest(home, name, {"schemaVersion": 2, "layers": layers}, registry=registry)
    return blob


def ollama_manifest(home: Path, name: str, manifest: object, *, registry: str = "registry.ollama.ai/library") -> Path:
    model, tag = name.split(":")
    path = home / ".ollama/models/manifests" / registry / model / tag
    return write(path, manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode())


def hub_file(home: Path, repo: str, file: str, data: bytes = GGUF, *, commit: str = "c" * 40) -> Path:
    """A file as huggingface_hub downloads it; returns the link to it."""
    root = home / ".cache/huggingface/hub" / ("models--" + repo.replace("/", "--"))
    blob = write(root / "blobs" / hashlib.sha256(data).hexdigest(), data)
    write(root / "refs/main", commit.encode())
    link = root / "snapshots" / commit / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(blob)
    return link
