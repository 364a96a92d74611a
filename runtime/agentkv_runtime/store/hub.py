"""Models of the Hugging Face hub, downloaded into its own cache, where other programs find them, too."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv_runtime.errors import PullError
from agentkv_runtime.gguf.parts import parts_pattern
from agentkv_runtime.store.content import file_digest
from agentkv_runtime.text.tokenizer import TOKENIZER_FILES

__all__ = ["Name", "Snapshot", "download", "download_words", "parse_name"]

_PART = r"[A-Za-z0-9_-][\w.-]*"
_NAME = re.compile(
    rf"(?P<repo>{_PART}(/{_PART})?)(/(?P<file>({_PART}/)*{_PART}(?i:\.gguf)))?(@(?P<revision>{_PART}(/{_PART})*))?",
    re.ASCII,
)
_SMALL = ("config.json", *TOKENIZER_FILES)
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
_OLDER_WEIGHTS = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")
_WORKERS = 4  # files at a time

Received = Callable[[int, int], None]
"""Called with the bytes received and the total, from any thread; an exception that it raises ends the download."""


@dataclass(frozen=True)
class Name:
    """A model on the hub: `owner/model`, `owner/model@revision` or `owner/model/file.gguf`."""

    repo: str
    file: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo + (f"/{self.file}" if self.file else "") + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Snapshot:
    """A model's files at one commit.

    Attributes:
        path: folder of the files, or the GGUF file.
        commit: commit of the repository.
    """

    path: Path
    commit: str


def parse_name(text: str, revision: str | None = None) -> Name:
    """Parses a name as users write it; `revision` may be given separately. Raises PullError."""
    match = _NAME.fullmatch(text)
    if match is None or (revision and match["revision"]):
        raise PullError(
            f"{text!r} is no name of a model on the hub: give OWNER/MODEL, OWNER/MODEL@REVISION, or "
            "OWNER/MODEL/FILE.gguf"
        )
    return Name(match["repo"], match["file"], revision or match["revision"])


def download(name: Name, received: Received) -> Snapshot:
    """Downloads the files that an export reads, except those in the hub's cache already.

    The token is the environment's (`HF_TOKEN`) or that of `hf auth login`; `HF_ENDPOINT`, `HF_HOME` and
    `HF_HUB_OFFLINE` apply. Compares every file with its digest on the hub.

    Raises PullError if the hub refuses or cannot be reached, and for files that were damaged on the way.
    """
    wanted = [parts_pattern(name.file)] if name.file else [*_SMALL, *_WEIGHTS]
    folder = _fetched(name, wanted, received)
    if not name.file and not any(folder.glob("*.safetensors")):
        _fetched(name, [*_SMALL, *_OLDER_WEIGHTS], received)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and any(path.match(pattern) for pattern in (*wanted, *_OLDER_WEIGHTS)):
            _check(path)
    path = folder / name.file if name.file else folder
    if not path.exists():
        raise PullError(f"{name}: the repository has no such file. Look at its files on the hub")
    return Snapshot(path, folder.name) if name.file else _snapshot(name, folder)


def download_words(name: Name, received: Received) -> Snapshot:
    """Downloads a repository's config and tokenizer, without the weights. Raises PullError, as `download` does."""
    return _snapshot(name, _fetched(name, list(_SMALL), received))


def _snapshot(name: Name, folder: Path) -> Snapshot:
    if not (folder / "config.json").is_file():
        raise PullError(
            f"{name} has no config.json, so it is no model of transformers. Of a repository of GGUF files name one: "
            f"agentkv pull {name.repo}/FILE.gguf"
        )
    return Snapshot(folder, folder.name)


def _fetched(name: Name, wanted: list[str], received: Received) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise PullError("pulling needs huggingface_hub, which is not installed: pip install huggingface_hub") from error
    meter: Any = _meter(received)
    try:
        folder = snapshot_download(
            name.repo,
            revision=name.revision,
            allow_patterns=wanted,
            tqdm_class=meter,
            max_workers=_WORKERS,
            library_name="agentkv",
        )
    except Exception as error:  # of the library and those below it: many kinds
        raise PullError(_refusal(name, error)) from error
    return Path(folder)


def _meter(received: Received) -> type[Any]:
    """A class that huggingface_hub uses as its progress bar and that passes byte counts to `received`."""
    from huggingface_hub.utils.tqdm import tqdm

    bar: Any = tqdm

    class Meter(bar):  # type: ignore[misc]
        def __init__(self, *args: Any, name: str = "", **options: Any) -> None:
            self._counts = name == "huggingface_hub.snapshot_download"  # bytes of all files
            super().__init__(*args, **{**options, "disable": True})
            self.n = options.get("initial", 0)
            self.total = options.get("total")

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts:
                received(int(self.n), int(self.total or 0))

    return Meter


def _check(path: Path) -> None:
    """Removes a file whose digest differs from the hub's, and raises PullError."""
    blob = Path(os.path.realpath(path))
    if re.fullmatch("[0-9a-f]{64}", blob.name):  # LFS and Xet files go by their SHA-256
        actual = file_digest(blob)
    elif re.fullmatch("[0-9a-f]{40}", blob.name):  # all others by git's object name
        data = blob.read_bytes()
        actual = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    else:
        return
    if actual != blob.name:
        blob.unlink()
        path.unlink(missing_ok=True)
        raise PullError(
            f"{path.name}: came damaged (its digest is {actual}, not {blob.name}) and was removed. Pull again"
        )


def _refusal(name: Name, error: Exception) -> str:
    from huggingface_hub import errors
    from huggingface_hub.constants import HF_HUB_OFFLINE

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return f"{name}: whoever wants it must be let in. Ask for access on its page on the hub, then: hf auth login"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name}: the repository has no such revision. Give a branch, a tag or a commit of it"
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        return (
            f"{name}: there is no such model on the hub, or it is not yours to see (status {status}). Look at the "
            "name; for a private one set HF_TOKEN or run: hf auth login"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        if HF_HUB_OFFLINE:
            return f"{name}: not downloaded yet, or not whole, and HF_HUB_OFFLINE is set. Pull it once without"
        return f"{name}: the hub cannot be reached, and not all of it was downloaded before. Look at the connection"
    if isinstance(error, errors.HFValidationError):
        return f"{name}: no name of a model on the hub: {error}"
    reason = " ".join(str(error).split())
    return f"{name}: the download failed: {reason or type(error).__name__}. Pull again: what is whole is kept"
