"""The cache of the Hugging Face hub, which `agentkv pull` and many other programs fill.

models--<owner>--<model>/refs/<revision>            a commit
models--<owner>--<model>/snapshots/<commit>/<file>  a link to blobs/<digest>, once it is whole
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from agentkv_runtime.errors import StoreError
from agentkv_runtime.folder.small_files import read_object, read_text
from agentkv_runtime.store.found.files import folder_of, gguf_models, listed_folder
from agentkv_runtime.store.found.model import Found, Unusable
from agentkv_runtime.store.hub import Name

__all__ = ["HubCache", "cached_file", "remove_cached"]

_PREFIX = "models--"
_DEPTHS = ("*.gguf", "*/*.gguf", "*/*/*.gguf")  # no deeper: a link may lead back


class HubCache:
    """The hub's cache as a ModelStore: `owner/model/file.gguf`, or `owner/model` for a folder of transformers."""

    program = "Hugging Face"
    default_tag = ""

    def models(self) -> Iterator[Found | Unusable]:
        """Yields the models in the newest commit of each repository."""
        root = _root()
        for folder in listed_folder(root) if root else ():
            if isinstance(folder, Unusable):
                yield folder
            elif folder.name.startswith(_PREFIX):
                repo = folder.name.removeprefix(_PREFIX).replace("--", "/", 1)
                snapshot = _snapshot(folder, None)
                if snapshot is not None:
                    yield from _models(repo, snapshot)


def cached_file(name: Name) -> Path | None:
    """The GGUF file of a name; None if it was not downloaded."""
    root = _root()
    if root is None or name.file is None:
        return None
    snapshot = _snapshot(root / (_PREFIX + name.repo.replace("/", "--")), name.revision)
    path = snapshot / name.file if snapshot else None
    return path if path is not None and path.is_file() else None


def remove_cached(path: Path) -> None:
    """Removes a file of a snapshot, the links to it in other snapshots, and its blob. Raises OSError."""
    blob = Path(os.path.realpath(path))
    repository = next((folder for folder in path.parents if folder.name.startswith(_PREFIX)), None)
    for link in list((repository / "snapshots").rglob(path.name)) if repository else [path]:
        if os.path.realpath(link) == str(blob):
            link.unlink()
    if repository is None or blob.is_relative_to(os.path.realpath(repository)):  # no link leads to somebody's own file
        blob.unlink(missing_ok=True)


def _root() -> Path | None:
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return folder_of(variable)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        caches = str(Path(caches) / "huggingface")
    home = folder_of("HF_HOME", ".cache", "huggingface")
    return Path(caches) / "hub" if caches and not os.environ.get("HF_HOME") else home / "hub" if home else None


def _snapshot(repository: Path, revision: str | None) -> Path | None:
    """The folder of a revision; without one that of main, or else of the latest snapshot."""
    snapshots = repository / "snapshots"
    with suppress(StoreError):
        commit = read_text(repository / "refs" / (revision or "main"), StoreError).strip()
        if commit and "/" not in commit and (snapshots / commit).is_dir():
            return snapshots / commit
    if revision is not None:
        return snapshots / revision if (snapshots / revision).is_dir() else None
    with suppress(OSError):
        return max((path for path in snapshots.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    return None


def _models(repo: str, snapshot: Path) -> Iterator[Found | Unusable]:
    files = [path for depth in _DEPTHS for path in sorted(snapshot.glob(depth))]
    for folder, group in groupby(files, key=lambda path: path.parent):
        below = "" if folder == snapshot else f"{folder.relative_to(snapshot)}/"
        yield from gguf_models(group, f"{repo}/{below}")
    if not files and _speaks(snapshot):
        yield _folder(repo, snapshot)


def _speaks(snapshot: Path) -> bool:
    """Whether a snapshot is a language model; the cache has others as well."""
    try:
        config = read_object(snapshot / "config.json", StoreError)
    except StoreError:
        return False
    kinds = config.get("architectures")
    return "text_config" in config or (isinstance(kinds, list) and any("CausalLM" in str(kind) for kind in kinds))


def _folder(repo: str, snapshot: Path) -> Found | Unusable:
    try:
        index = read_object(snapshot / "model.safetensors.index.json", StoreError).get("weight_map")
        names = sorted(map(str, index.values())) if isinstance(index, dict) else ["model.safetensors"]
        sizes = {name: (snapshot / name).stat().st_size for name in names}
    except (StoreError, OSError, ValueError):
        return Unusable(repo, "its weights are not all here")
    return Found(repo, snapshot, sum(sizes.values()))
