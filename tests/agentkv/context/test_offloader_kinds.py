"""Waiting branches of other caches and models: what comes back is what a fresh branch has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from tests.conftest import FolderFactory
from tests.rows import one_in

from ..books import books_are_held  # noqa: F401 - a fixture
from .waiting_branches import play

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("books_are_held")]

OPTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "int8": lambda folder: {"kv_dtype": "int8"},
    "int4": lambda folder: {"kv_dtype": "int4"},
    "window": lambda folder: {"window": 64, "sinks": 4},
    "drafts": lambda folder: {"speculative": kv.spec.Suffix()},
    "prefixes": lambda folder: {"prefix_cache": folder / "prefixes"},
    "nothing retained": lambda folder: {"retain": 0},
    "small steps": lambda folder: {"max_batch_tokens": 16},
    "overflow": lambda folder: {"overflow": kv.overflow.DropOldest(keep=0)},
}

KINDS = [
    ("cpu", "gemma3"), ("cpu", "qwen3_next"), ("cpu", "mistral"), ("cpu", "bamba"), ("cpu", "recurrent_gemma"),
    ("torch", "llama"), ("mlx", "llama"), ("mlx", "gemma3"), ("mlx", "qwen3_next"),
]  # fmt: skip


@pytest.mark.parametrize("options", one_in(2, OPTIONS))
async def test_random_verbs_under_each_option(tmp_path: Path, options: str) -> None:
    assert (await play(tmp_path, 3, 120, **OPTIONS[options](tmp_path)))["offloads"] > 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("backend", "kind"), one_in(3, KINDS))
async def test_random_verbs_of_other_models(
    backend: str, kind: str, tmp_path: Path, tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory
) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx.core")
    model = tiny_hf_folder(kind) if backend == "torch" else tiny_exported_folder(kind, backend=backend)
    how = {"kv_dtype": "fp32", "backend": backend}
    assert (await play(tmp_path, 1, 120, model, backend == "cpu", **how))["offloads"] > 0
