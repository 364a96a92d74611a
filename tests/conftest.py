"""Fixtures that every suite shares: tiny models, built once per session."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models import TinySpec, tiny_spec, write_hf_folder

# Tiny models gain nothing from torch's threads, whose barriers spin when another process holds a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

FolderFactory = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_hf_folder(tmp_path_factory: pytest.TempPathFactory) -> FolderFactory:
    """`tiny_hf_folder(kind="llama", **fields of TinySpec) -> Path` of a Hugging Face folder, one per spec."""
    root = tmp_path_factory.mktemp("hf")
    built: dict[TinySpec, Path] = {}

    def build(kind: str = "llama", **overrides: Any) -> Path:
        spec = tiny_spec(kind, **overrides)
        if spec not in built:
            built[spec] = write_hf_folder(spec, root / spec.name)
        return built[spec]

    return build


@pytest.fixture(scope="session")
def tiny_exported_folder(tmp_path_factory: pytest.TempPathFactory, tiny_hf_folder: FolderFactory) -> FolderFactory:
    """`tiny_exported_folder(kind="llama", backend="cpu", quant="none", dtype="fp32", **fields of TinySpec) -> Path`.

    AGENTKV_TEST_EXPORTS names a folder that keeps exports between sessions, for work on anything but export.
    """
    kept = os.environ.get("AGENTKV_TEST_EXPORTS")
    root = Path(kept) if kept else tmp_path_factory.mktemp("exported")
    built: dict[tuple[Any, ...], Path] = {}

    def build(
        kind: str = "llama",
        *,
        backend: str = "cpu",
        quant: str = "none",
        dtype: str = "fp32",
        max_tokens: int = 64,
        max_logits: int = 64,
        **overrides: Any,
    ) -> Path:
        from agentkv_runtime.export import export_folder

        spec = tiny_spec(kind, **overrides)
        options = {"backend": backend, "quant": quant, "dtype": dtype}
        bounds = {"max_tokens": max_tokens, "max_logits": max_logits}
        key = (spec, *options.values(), *bounds.values())
        if key not in built:
            out = root / f"{spec.name}-{'-'.join(options.values())}-t{max_tokens}n{max_logits}"
            if not (kept and out.exists()):
                export_folder(tiny_hf_folder(kind, **overrides), out, **options, **bounds)
            built[key] = out
        return built[key]

    return build


@pytest.fixture(scope="session")
def soak_count() -> int:
    """How many random cases a soak test runs; AGENTKV_SOAK sets it."""
    return int(os.environ.get("AGENTKV_SOAK", "10000"))
