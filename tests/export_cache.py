"""Exports that tests need but are not about, kept between runs under a key of what they were made by."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
KEPT_KEYS = 4  # of other states of the sources, so that going back and forth between two costs nothing

SOURCES = (
    "runtime/agentkv_runtime/export/**/*.py",
    "runtime/agentkv_runtime/folder/*.py",
    "runtime/agentkv_runtime/gguf/**/*.py",
    "runtime/agentkv_runtime/hf/*.py",
    "runtime/agentkv_runtime/sources/*.py",
    "runtime/agentkv_runtime/*.py",
    "cpp/cpu/**/*",  # packs weights
    "cpp/executorch/cpu/*",  # reads what programs hold
    "cpp/executorch/mlx/*",
    "tests/models.py",
    "tests/runtime/draft_heads.py",
    "tests/runtime/test_export_mlx_programs.py",
    "tests/runtime/test_export_models.py",
    "examples/nano/weights/*",
)
_TOOLS = ("executorch", "torch", "torchao", "transformers")


class ExportCache:
    """Folders by name. Several test processes share it: one makes a folder, the others wait for it."""

    def __init__(self, root: Path = ROOT / "build" / "cache") -> None:
        self._folder = root / _key()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.touch()
        _sweep(root)

    def get(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder called `name`; where there is none, `make` writes it at the path that it is given."""
        folder = self._folder / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                draft = self._folder / f"{name}.draft"
                shutil.rmtree(draft, ignore_errors=True)
                make(draft)
                draft.rename(folder)
        return folder


def _key() -> str:
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in filter(Path.is_file, sorted(ROOT.glob(pattern))):
            digest.update(str(path.relative_to(ROOT)).encode())
            digest.update(path.read_bytes())
    for tool in _TOOLS:
        digest.update(f"{tool} {importlib.metadata.version(tool)}".encode())
    return digest.hexdigest()[:16]


def _sweep(root: Path) -> None:
    folders = sorted(root.iterdir(), key=_used, reverse=True)
    for folder in folders[KEPT_KEYS:]:
        shutil.rmtree(folder, ignore_errors=True)


def _used(folder: Path) -> float:
    """When a folder was used last; another process may sweep at the same time, and have taken it."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
